//! `limitctl top`.

use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;

use crate::arguments::{SegmentPath, interval};
use crate::exit::{ExitCode, Failure};
use crate::live::sampler::Sampler;
use crate::live::schedule::Schedule;
use crate::reveal::Reveal;
use crate::screen::state::{Screen, Wish};
use crate::screen::terminal::{Input, Session, end_by};
use crate::screen::{self, Signs};

/// Show a segment live, on the whole screen
///
/// Sets and their limits, what is admitted and refused per second, queues, holders, processes, and the keys that are asked
/// for most often. Enter opens a set or a key, Esc goes back, `s` sorts, `/` filters, `p` pauses, Tab goes to the next
/// list, `q` quits. Maps the file read-only and takes no lock, so nobody waits for it, and permission to read the file is
/// enough. `NO_COLOR` is respected: everything can be read without colours.
#[derive(Args, Debug)]
pub struct Top {
    /// How long to wait between two looks, such as 500ms or 5s
    ///
    /// Rates are averages over this time. A bare number counts seconds.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,

    /// How many of the hottest keys of each keyed set to look for
    ///
    /// To find them, every key of the set is looked at, which takes some milliseconds for each hundred thousand. With 0,
    /// no key is looked at.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    keys: usize,

    #[command(flatten)]
    reveal: Reveal,

    #[command(flatten)]
    segment: SegmentPath,
}

impl Top {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if !Session::is_possible() {
            return Err(Failure::usage(
                "top needs a terminal; `limitctl watch` prints lines instead",
            ));
        }
        let mut sampler = Sampler::open(&self.segment.path, self.keys, self.reveal)?;
        let screen = Screen::new(sampler.look_at_processes_too(&Rc::default())?, Signs::of_locale());
        let session = Session::start().map_err(|error| Failure::of_system(&error, "the terminal"))?;
        let signal = show(session, screen, &mut sampler, self.every)?;
        // The session has ended, and the terminal is restored.
        if let Some(signal) = signal {
            end_by(signal);
            return Ok(ExitCode::of(128 + signal as u8));
        }
        Ok(ExitCode::DONE)
    }
}

/// Shows the segment until the user quits, or a signal ends it.
fn show(
    mut session: Session,
    mut screen: Screen,
    sampler: &mut Sampler,
    every: Duration,
) -> Result<Option<nix::sys::signal::Signal>, Failure> {
    let mut schedule = Schedule::starting(Instant::now(), every);
    loop {
        session
            .terminal
            .draw(|frame| screen::draw(&mut screen, frame))
            .map_err(|error| Failure::of_system(&error, "cannot draw"))?;
        match session.wait(schedule.remaining(Instant::now())) {
            Input::Key(key) => match screen.press(key) {
                Wish::Nothing => {}
                Wish::Quit => return Ok(None),
                Wish::LookUp => screen.look_up(sampler)?,
            },
            Input::Resized => {}
            Input::Signal(signal) => return Ok(Some(signal)),
            Input::Closed => return Ok(None),
            Input::Nothing => {
                schedule.advance(Instant::now());
                let look = sampler.look_at_processes_too(&Rc::default())?;
                screen.update(look, sampler)?;
            }
        }
    }
}
