//! What an error shows when a program prints it in the form of `Debug`.

/// Makes the `Debug` form of an error its message. A program that returns an error from `main`, or unwraps it, prints
/// that form, and the message has more to say than the fields.
///
/// Hidden, because it is exported only for the errors of `shmlimit-fleet`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_message {
    ([$($parameters:tt)+] $error:ty) => {
        $crate::debug_is_message!(@ [<$($parameters)+>] $error);
    };
    ($error:ty) => {
        $crate::debug_is_message!(@ [] $error);
    };
    (@ [$($parameters:tt)*] $error:ty) => {
        /// Writes the message, as `Display` does: a program that returns the error from `main`, or unwraps it, prints this.
        impl $($parameters)* std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(crate) use debug_is_message;
