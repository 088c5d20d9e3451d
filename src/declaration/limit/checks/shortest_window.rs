//! The shortest window that can be declared.

use std::time::Duration;

use crate::declaration::limit::window::Window;
use crate::declaration::location::Location;
use crate::error::DeclarationError;

/// The shortest window. It follows from how precisely the kernel wakes a thread: 50 us late, which is the default slack
/// of timers, and later if processors are busy. That is a twentieth of a millisecond. If windows were much shorter,
/// waits would be longer than the window; and in windows of a microsecond, no two requests of a process would fall into
/// the same one, so the limit would limit nothing. Nothing is lost: the same rate over a longer window, with a `burst`,
/// expresses what a shorter one would.
const MIN_WINDOW: Duration = Duration::from_millis(1);

pub(in crate::declaration) fn check_window(
    place: &Location<'_>,
    field: &str,
    window: Option<Window>,
) -> Result<(), DeclarationError> {
    match window {
        Some(Window::Span(length)) if length < MIN_WINDOW => Err(place.value(
            field,
            Window::Span(length),
            format!(
                "is too short to be kept: write at least {:?}, and a capacity in proportion; `burst` says how much of \
                 that may pass at once",
                Window::Span(MIN_WINDOW).to_string()
            ),
        )),
        _ => Ok(()),
    }
}
