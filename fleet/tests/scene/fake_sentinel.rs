//! A sentinel that says what a test wants. Real ones choose for themselves when to notify the former primary.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The port of the primary, and the epoch in which it became one.
type Named = Arc<Mutex<(u16, u64)>>;

pub struct FakeSentinel {
    pub port: u16,
    named: Named,
}

impl FakeSentinel {
    /// Starts a sentinel that names the server at this port as the primary.
    pub fn start(primary: u16, epoch: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let named: Named = Arc::new(Mutex::new((primary, epoch)));
        let shared = Arc::clone(&named);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let named = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &named));
            }
        });
        Self { port, named }
    }

    /// Names another primary from now on.
    pub fn name(&self, primary: u16, epoch: u64) {
        *self.named.lock().unwrap_or_else(PoisonError::into_inner) = (primary, epoch);
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn serve(mut stream: TcpStream, named: &Named) {
    let (mut received, mut buffer) = (String::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        received.push_str(&String::from_utf8_lossy(&buffer[..count]));
        let (port, epoch) = *named.lock().unwrap_or_else(PoisonError::into_inner);
        let (port, epoch) = (bulk(&port.to_string()), bulk(&epoch.to_string()));
        for (question, answer) in [
            (
                "get-master-addr-by-name",
                format!("*2\r\n{}{port}", bulk("127.0.0.1")),
            ),
            (
                "master",
                format!("*4\r\n{}{port}{}{epoch}", bulk("port"), bulk("config-epoch")),
            ),
        ] {
            // The client sends both questions at once, and each ends with the name.
            let asked = format!("{}{}", bulk(question), bulk("limits"));
            if let Some(at) = received.find(&asked) {
                received.replace_range(..at + asked.len(), "");
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        }
    }
}
