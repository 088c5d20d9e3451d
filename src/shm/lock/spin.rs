//! Spinning for a moment before blocking in the kernel, in case another processor is about to unlock.

use once_cell::race::OnceBool;

/// Processor pauses before blocking.
const SPINS: u32 = 500;

/// Pauses without progress after which the holder is assumed not to be running.
const SPINS_WITHOUT_PROGRESS: u32 = 300;

/// Pauses before the first look at a contended lock, and the most between two looks.
const FIRST_PAUSES: u32 = 32;
const MAX_PAUSES: u32 = 128;

/// What a look at the lock word shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) word: u64,
    pub(super) is_free: bool,
}

/// Tries for a while. Gives up early if the lock word does not change: then the holder is not running, and may be
/// waiting for the very processor we are spinning on.
pub(super) fn spin<T, E>(
    look: impl Fn() -> Look,
    mut try_lock: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    // Finding out reads some files, and the process may fork meanwhile: a cell of the standard library would then
    // stay locked in the child for ever. If several threads ask at once, each finds out for itself.
    static SEVERAL_PROCESSORS: OnceBool = OnceBool::new();
    if !SEVERAL_PROCESSORS
        .get_or_init(|| std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1))
    {
        return Ok(None);
    }
    let mut seen = look().word;
    let mut pauses = FIRST_PAUSES;
    let mut spun = 0;
    let mut without_progress = 0;
    while spun < SPINS && without_progress < SPINS_WITHOUT_PROGRESS {
        // Looking takes the lock's cache line away from its holder, so the looks become rarer: the holder gets
        // several operations done in the meantime, which is worth more than a prompt turn.
        for _ in 0..pauses {
            std::hint::spin_loop();
        }
        spun += pauses;
        let now = look();
        if now.is_free
            && let Some(taken) = try_lock()?
        {
            return Ok(Some(taken));
        }
        without_progress = if now.word == seen {
            without_progress + pauses
        } else {
            0
        };
        seen = now.word;
        pauses = (2 * pauses).min(MAX_PAUSES);
    }
    Ok(None)
}
