//! A network between hosts and the store that can be slow, silent or cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What happens to the bytes.
#[derive(Debug, Default)]
struct Weather {
    delay_millis: AtomicU64,
    is_silent: AtomicBool,
    is_down: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

/// Forwards connections to a port.
pub struct Proxy {
    pub port: u16,
    weather: Arc<Weather>,
}

impl Proxy {
    pub fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let weather = Arc::<Weather>::default();
        let shared = Arc::clone(&weather);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.is_down.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else {
                    continue;
                };
                let both = [&stream, &server].map(|stream| stream.try_clone().expect("a stream"));
                shared.streams.lock().expect("no panic").extend(both);
                for (mut from, mut to) in [
                    (
                        stream.try_clone().expect("a stream"),
                        server.try_clone().expect("a stream"),
                    ),
                    (server, stream),
                ] {
                    let weather = Arc::clone(&shared);
                    thread::spawn(move || {
                        let mut buffer = [0; 16_384];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            let delay = weather.delay_millis.load(Ordering::Relaxed);
                            thread::sleep(Duration::from_millis(delay));
                            if !weather.is_silent.load(Ordering::Relaxed)
                                && to.write_all(&buffer[..count]).is_err()
                            {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { port, weather }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Delays each chunk of bytes.
    pub fn set_delay(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).expect("short");
        self.weather.delay_millis.store(millis, Ordering::Relaxed);
    }

    /// Keeps connections open but lets nothing through.
    pub fn set_silent(&self, is_silent: bool) {
        self.weather.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Cuts connections and accepts no new ones.
    pub fn set_down(&self, is_down: bool) {
        self.weather.is_down.store(is_down, Ordering::Relaxed);
        if is_down {
            for stream in self.weather.streams.lock().expect("no panic").drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}
