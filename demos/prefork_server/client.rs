//! The client of the demonstration: many connections that ask for far more than the limits allow, and a tally of the
//! answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use shmlimit::declare::Kind;
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::{JoinSet, LocalSet};

use crate::Failure;
use crate::rules::Rules;
use crate::worker::{CLIENT_KEY, SERVER_WORKER, WORK_CLOCK};

/// The client opens a new connection after this many requests, so that every worker gets some.
const REQUESTS_PER_CONNECTION: usize = 16;

/// How long a connection waits after a refusal. It ignores `Retry-After`: limits exist because of clients like this one.
const PAUSE: Duration = Duration::from_millis(10);

/// A tally of the answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// From before the first request to after the last answer.
    pub elapsed: Duration,
    pub by_worker: BTreeMap<i32, Answers>,
    /// Requests whose connection ended before the answer.
    pub cut_off: u64,
    /// For each calls limit, the most calls that were surely admitted within one window.
    pub max_in_window: BTreeMap<String, u64>,
    /// The most requests that were in progress at the same instant.
    pub burst: u64,
}

/// A tally of one worker's answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answers {
    pub admitted: u64,
    /// By the binding limit.
    pub refused: BTreeMap<String, u64>,
    /// Answers other than 200, 429 and 503.
    pub other: u64,
}

/// One request's instants, in nanoseconds of the host's monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Work {
    asked: u64,
    admitted: u64,
    done: u64,
}

#[derive(Default)]
struct Notes {
    tally: Tally,
    work: Vec<Work>,
}

/// Sends requests for `duration`. Runs in a forked child, so the runtime is made here, after the fork.
pub fn drive(
    server: SocketAddr,
    connections: u32,
    duration: Duration,
    rules: &Rules,
) -> Result<Tally, Failure> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let notes = Rc::new(RefCell::new(Notes::default()));
    let started = Instant::now();
    let until = started + duration;
    LocalSet::new().block_on(&runtime, async {
        let mut clients = JoinSet::new();
        for _ in 0..connections {
            clients.spawn_local(ask_until(server, until, Rc::clone(&notes)));
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        Ok::<_, Failure>(())
    })?;
    let Notes { mut tally, mut work } = notes.take();
    tally.elapsed = started.elapsed();
    work.sort_by_key(|work| work.asked);
    for limit in rules.of_kind(Kind::Calls) {
        if let Some(window) = limit.span() {
            let window = u64::try_from(window.as_nanos())?;
            tally
                .max_in_window
                .insert(limit.name.clone(), max_in_window(&work, window));
        }
    }
    tally.burst = burst(&work);
    Ok(tally)
}

async fn ask_until(server: SocketAddr, until: Instant, notes: Rc<RefCell<Notes>>) -> Result<(), Failure> {
    while Instant::now() < until {
        let stream = TcpStream::connect(server).await?;
        // On an error, the worker that had the connection was killed; another worker takes the next one.
        let Ok(mut connection) = Connection::over(stream, server).await else {
            continue;
        };
        for _ in 0..REQUESTS_PER_CONNECTION {
            if Instant::now() >= until || connection.sender.ready().await.is_err() {
                break;
            }
            let Ok(answer) = connection.ask(None).await else {
                notes.borrow_mut().tally.cut_off += 1;
                break;
            };
            let refused = answer.status != StatusCode::OK;
            notes.borrow_mut().take(answer)?;
            if refused {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    Ok(())
}

/// A connection to some worker.
pub struct Connection {
    server: SocketAddr,
    sender: http1::SendRequest<Empty<Bytes>>,
}

impl Connection {
    pub async fn open(server: SocketAddr) -> Result<Self, Failure> {
        Self::over(TcpStream::connect(server).await?, server).await
    }

    async fn over(stream: TcpStream, server: SocketAddr) -> Result<Self, Failure> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::task::spawn_local(connection);
        Ok(Self { server, sender })
    }

    pub async fn ask(&mut self, key: Option<&str>) -> Result<Answer, Failure> {
        let mut request = Request::get("/").header(HOST, self.server.to_string());
        if let Some(key) = key {
            request = request.header(CLIENT_KEY, key);
        }
        let request = request.body(Empty::new())?;
        Answer::read(self.sender.send_request(request).await?).await
    }
}

/// A complete answer.
pub struct Answer {
    pub status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    async fn read(response: Response<Incoming>) -> Result<Self, Failure> {
        let (head, body) = response.into_parts();
        Ok(Self {
            status: head.status,
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        })
    }

    pub fn header(&self, name: &str) -> Result<&str, Failure> {
        let value = self
            .headers
            .get(name)
            .ok_or_else(|| format!("an answer without {name}"))?;
        Ok(value.to_str()?)
    }
}

impl Notes {
    fn take(&mut self, answer: Answer) -> Result<(), Failure> {
        let worker = answer.header(SERVER_WORKER)?.parse()?;
        let answers = self.tally.by_worker.entry(worker).or_default();
        match answer.status {
            StatusCode::OK => {
                answers.admitted += 1;
                self.work.push(Work::parse(answer.header(WORK_CLOCK)?)?);
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let problem: serde_json::Value = serde_json::from_slice(&answer.body)?;
                let limit = problem["violated-policies"][0].as_str().unwrap_or("(no room)");
                *answers.refused.entry(limit.to_owned()).or_default() += 1;
            }
            _ => answers.other += 1,
        }
        Ok(())
    }
}

impl Work {
    fn parse(clock: &str) -> Result<Self, Failure> {
        let instants = clock
            .split(' ')
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()?;
        let [asked, admitted, done] = instants[..] else {
            return Err(format!("`{clock}` is not a work clock").into());
        };
        Ok(Self {
            asked,
            admitted,
            done,
        })
    }
}

/// The most calls that were both requested and admitted within one stretch as long as the window. The instant of the
/// decision lies between the two, so each of these calls was surely admitted in that stretch.
fn max_in_window(work: &[Work], window: u64) -> u64 {
    let counts = work.iter().enumerate().map(|(index, first)| {
        let end = first.asked.saturating_add(window);
        let within = work[index..].iter().take_while(|work| work.asked <= end);
        within.filter(|work| work.admitted <= end).count() as u64
    });
    counts.max().unwrap_or(0)
}

/// The most requests that were worked on at one instant.
fn burst(work: &[Work]) -> u64 {
    let mut events: Vec<(u64, i64)> = work
        .iter()
        .flat_map(|work| [(work.admitted, 1), (work.done, -1)])
        .collect();
    // At the same instant, requests that end sort before requests that begin.
    events.sort_unstable();
    let at_once = events.iter().scan(0, |current, (_, change)| {
        *current += change;
        Some(*current)
    });
    at_once.max().and_then(|max| u64::try_from(max).ok()).unwrap_or(0)
}
