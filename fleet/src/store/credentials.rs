//! The user and password for the store, which come only from the environment.

use std::ffi::OsString;
use std::path::PathBuf;
use std::{env, fmt, fs, io};

use thiserror::Error;

use shmlimit::debug_is_message;

/// The variable with the user name, for servers with access control lists.
pub const USERNAME: &str = "SHMLIMIT_FLEET_USERNAME";
/// The variable with the password.
pub const PASSWORD: &str = "SHMLIMIT_FLEET_PASSWORD";
/// The variable with the path of a file whose first line is the password.
pub const PASSWORD_FILE: &str = "SHMLIMIT_FLEET_PASSWORD_FILE";
/// The variable with the path of certificates in PEM format, one of which must have signed the server's.
pub const CA_FILE: &str = "SHMLIMIT_FLEET_CA_FILE";

/// Why user and password could not be read.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CredentialsError {
    /// Both ways to give the password are used.
    #[error("{PASSWORD} and {PASSWORD_FILE} are both set: set one of them")]
    Both,
    /// A variable is not valid UTF-8.
    #[error("{0} is not valid UTF-8")]
    NotText(&'static str),
    /// There is a user but no password.
    #[error("{USERNAME} is set without a password: set {PASSWORD} or {PASSWORD_FILE}")]
    NoPassword,
    /// A file named by a variable cannot be read.
    #[error("{variable} names {path}, which cannot be read: {kind}")]
    File {
        /// The variable.
        variable: &'static str,
        /// The path that it names.
        path: PathBuf,
        /// The error of the system.
        kind: io::ErrorKind,
    },
}

debug_is_message!(CredentialsError);

/// User, password and certificates. `Debug` does not show secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) ca: Option<Vec<u8>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .field("username", &self.username.is_some())
            .field("password", &self.password.is_some())
            .field("ca", &self.ca.is_some())
            .finish()
    }
}

impl Credentials {
    /// Reads the environment, and the files that it names.
    ///
    /// # Errors
    ///
    /// [`CredentialsError`] if variables contradict one another or a file cannot be read.
    pub fn from_environment() -> Result<Self, CredentialsError> {
        Self::read(|name| env::var_os(name))
    }

    /// No user and no password, whatever the environment says.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Sets the password. On its own, this is for servers without access control lists.
    #[must_use]
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets the user, for servers with access control lists.
    #[must_use]
    pub fn with_username(mut self, username: impl Into<String>) -> Self {
        self.username = Some(username.into());
        self
    }

    /// Sets certificates in PEM format to trust instead of the system's.
    #[must_use]
    pub fn with_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, CredentialsError> {
        let text = |name: &'static str| {
            variable(name)
                .filter(|value| !value.is_empty())
                .map(|value| value.into_string().map_err(|_| CredentialsError::NotText(name)))
                .transpose()
        };
        let file = |name: &'static str| {
            variable(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
                .map(|path| {
                    fs::read(&path).map_err(|error| CredentialsError::File {
                        variable: name,
                        path,
                        kind: error.kind(),
                    })
                })
                .transpose()
        };
        let username = text(USERNAME)?;
        let mut password = text(PASSWORD)?;
        if let Some(bytes) = file(PASSWORD_FILE)? {
            if password.is_some() {
                return Err(CredentialsError::Both);
            }
            let text = String::from_utf8(bytes).map_err(|_| CredentialsError::NotText(PASSWORD_FILE))?;
            password = text
                .lines()
                .next()
                .filter(|line| !line.is_empty())
                .map(str::to_owned);
        }
        if username.is_some() && password.is_none() {
            return Err(CredentialsError::NoPassword);
        }
        let ca = file(CA_FILE)?;
        Ok(Self {
            username,
            password,
            ca,
        })
    }

    /// Removes the password from a text of the server or the network, in case it quotes what was sent.
    pub(crate) fn scrub(&self, text: &str) -> String {
        match &self.password {
            Some(password) if !password.is_empty() => text.replace(password.as_str(), "(password)"),
            _ => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Credentials, CredentialsError> {
        Credentials::read(|name| {
            let value = variables.iter().find(|(known, _)| *known == name);
            value.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn takes_the_first_line_of_the_password_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("password");
        fs::write(&path, "s3cret\nnot this\n").expect("written");
        let path = path.to_str().expect("text");
        let credentials = read(&[(USERNAME, "limits"), (PASSWORD_FILE, path)]).expect("valid");
        assert_eq!(credentials.password.as_deref(), Some("s3cret"));
        assert_eq!(credentials.username.as_deref(), Some("limits"));
        assert_eq!(
            read(&[(PASSWORD, "a"), (PASSWORD_FILE, path)]),
            Err(CredentialsError::Both)
        );
    }

    #[test]
    fn refuses_a_user_without_a_password_and_a_file_that_is_not_there() {
        assert_eq!(read(&[(USERNAME, "limits")]), Err(CredentialsError::NoPassword));
        let missing = read(&[(PASSWORD_FILE, "/nonexistent/password")]);
        assert!(matches!(
            missing,
            Err(CredentialsError::File {
                kind: io::ErrorKind::NotFound,
                ..
            })
        ));
    }

    #[test]
    fn prints_no_password() {
        let credentials = read(&[(USERNAME, "limits"), (PASSWORD, "s3cret")]).expect("valid");
        assert!(!format!("{credentials:?}").contains("s3cret"));
        assert_eq!(credentials.scrub("AUTH limits s3cret"), "AUTH limits (password)");
    }
}
