//! Words of the participants' table, read back.

use proptest::prelude::*;

use super::participant::*;

proptest! {
    #[test]
    fn an_owner_word_names_slot_and_generation_and_is_never_zero(
        slot in 0..4096_u64, generation in 0..1_u64 << 48,
    ) {
        let id = ParticipantId { slot, generation };
        prop_assert_ne!(id.to_word(), 0);
        prop_assert_eq!(ParticipantId::from_word(id.to_word()), Some(id));
    }

    #[test]
    fn any_state_word_is_read_as_some_state(word in any::<u64>()) {
        let state = ParticipantState::from_word(word);
        prop_assert_eq!(ParticipantState::from_word(state.to_word()), state);
        prop_assert!(state.next_generation() < 1 << 48);
    }
}
