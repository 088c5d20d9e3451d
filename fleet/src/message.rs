//! What an error shows when a program prints it in the form of `Debug`.

/// Makes the `Debug` form of an error its message, as that of the errors of `shmlimit` is.
macro_rules! debug_is_message {
    ($error:ty) => {
        /// Writes the message, as `Display` does: a program that returns the error from `main`, or unwraps it, prints this.
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(crate) use debug_is_message;
