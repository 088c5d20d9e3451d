//! Rules of limits that hosts share, for which the models are compared with a server.

use std::time::Duration;

use shmlimit::Window;
use shmlimit::declare::Weekday;
use shmlimit::fleet::LeasedRule;

pub fn backlog(capacity: u64, seconds: u64, burst: u64) -> LeasedRule {
    LeasedRule::Backlog {
        capacity,
        window: Duration::from_secs(seconds),
        burst,
    }
}

pub fn window(capacity: u64, seconds: u64) -> LeasedRule {
    LeasedRule::Window {
        capacity,
        window: Duration::from_secs(seconds),
    }
}

pub fn calendar(capacity: u64, window: Window, utc_offset_minutes: i16, week_start: Weekday) -> LeasedRule {
    LeasedRule::Calendar {
        capacity,
        window,
        utc_offset_minutes,
        week_start,
    }
}
