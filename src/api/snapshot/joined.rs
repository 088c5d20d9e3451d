//! One snapshot of several files: those of a directory.

use std::collections::BTreeMap;
use std::path::Path;

use super::{FleetSnapshot, ParticipantSnapshot, SegmentSnapshot};

impl SegmentSnapshot {
    /// The snapshot of the directory at `path`, made of this snapshot of its first file and those of the others.
    pub(in crate::api) fn joined_by(mut self, path: &Path, others: Vec<Self>) -> Self {
        path.clone_into(&mut self.path);
        for set in &mut self.sets {
            set.fleet.clone_from(&self.fleet);
        }
        self.fleet = self.fleet.map(FleetSnapshot::of_directory);
        for mut other in others {
            self.size += other.size;
            self.created_utc = self.created_utc.min(other.created_utc);
            self.retired &= other.retired;
            self.same_place &= other.same_place;
            self.cold_starts += other.cold_starts;
            self.participant_capacity = self.participant_capacity.min(other.participant_capacity);
            let slots = join_participants(&mut self.participants, other.participants);
            if let Some(duty) = other.fleet.as_mut().and_then(|fleet| fleet.duty.as_mut()) {
                duty.slot = slots.get(&duty.slot).copied().unwrap_or(duty.slot);
            }
            for set in &mut other.sets {
                set.fleet.clone_from(&other.fleet);
                let of_holds = set.holds.iter_mut().map(|hold| &mut hold.owner_slot);
                let of_tickets = set.tickets.iter_mut().map(|ticket| &mut ticket.owner_slot);
                for slot in of_holds.chain(of_tickets).flatten() {
                    *slot = slots.get(slot).copied().unwrap_or(*slot);
                }
            }
            self.sets.extend(other.sets);
            self.fleet = match (self.fleet, other.fleet.map(FleetSnapshot::of_directory)) {
                (Some(fleet), Some(of_file)) => Some(fleet.and(of_file)),
                (fleet, of_file) => fleet.or(of_file),
            };
        }
        self
    }
}

/// Adds the participants of a file that are not known yet. Two copies of the library in one process stay two. Returns,
/// for each slot in the file, the slot of the known participant.
fn join_participants(
    known: &mut Vec<ParticipantSnapshot>,
    of_file: Vec<ParticipantSnapshot>,
) -> BTreeMap<u64, u64> {
    let mut unmatched: Vec<bool> = vec![true; known.len()];
    let mut slots = BTreeMap::new();
    for mut participant in of_file {
        let is_same = |one: &ParticipantSnapshot| {
            (one.pid, one.pid_namespace, one.alive)
                == (participant.pid, participant.pid_namespace, participant.alive)
        };
        let slot = participant.slot;
        let found = known
            .iter()
            .zip(&mut unmatched)
            .find(|(one, is_free)| **is_free && is_same(one));
        if let Some((one, is_free)) = found {
            *is_free = false;
            slots.insert(slot, one.slot);
        } else {
            let next = known.iter().map(|one| one.slot + 1).max();
            participant.slot = next.unwrap_or_default();
            slots.insert(slot, participant.slot);
            known.push(participant);
            unmatched.push(false);
        }
    }
    slots
}
