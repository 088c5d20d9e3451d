//! The messages between the front and the keeper.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

/// What the keeper reports.
#[derive(Debug, Deserialize, Serialize)]
pub enum Report {
    /// The permit is taken, and the command starts as soon as the front says so.
    Admitted,
    /// The permit is taken and has nothing to give back, so the front executes the command itself.
    NothingHeld,
    /// The command was not started: the exit code, and why.
    Failed { code: u8, message: String },
    /// The command runs, as the process with this id.
    Started { command: i32 },
    /// The command was stopped.
    Stopped,
    /// Something went wrong that does not change how the command ends.
    Complaint(String),
    /// The command has ended with this wait(2) status; `is_all` if nothing that it started is left running.
    Ended { status: i32, is_all: bool },
}

/// Tells the keeper to start the command. No signal has this number.
pub const GO: u8 = 0;

/// One end of a stream that carries reports in one direction and signals in the other. It is closed when its process
/// ends or executes a command.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
}

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self { stream: one }, Self { stream: other }))
    }

    pub fn report(&self, report: &Report) -> io::Result<()> {
        let text = serde_json::to_vec(report)?;
        let mut message = (text.len() as u32).to_ne_bytes().to_vec();
        message.extend(text);
        (&self.stream).write_all(&message)
    }

    /// Waits for the next report. Returns `None` if the keeper is gone.
    pub fn next_report(&self) -> io::Result<Option<Report>> {
        let mut length = [0; 4];
        let Some(()) = self.read(&mut length)? else {
            return Ok(None);
        };
        let mut text = vec![0; u32::from_ne_bytes(length) as usize];
        let Some(()) = self.read(&mut text)? else {
            return Ok(None);
        };
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Tells the keeper to start the command or to send it a signal.
    pub fn tell(&self, what: u8) -> io::Result<()> {
        (&self.stream).write_all(&[what])
    }

    /// Waits for what the front tells the keeper next. Returns `None` if the front is gone.
    pub fn told(&self) -> io::Result<Option<u8>> {
        let mut what = [0];
        Ok(self.read(&mut what)?.map(|()| what[0]))
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<()>> {
        match (&self.stream).read_exact(buffer) {
            Ok(()) => Ok(Some(())),
            // If the other process died before it had read everything, the stream is reset.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
