//! What each tenant gets while the processes that serve all of them are killed again and again.

use std::env;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shmlimit::declare::Scope;
use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};

const PATH: &str = "SHMLIMIT_BENCH_GATEWAY";
const GATEWAYS: usize = 3;
const PLACES: u64 = 32;
const TENANTS: u8 = 200;

/// How long a request holds its place.
const HOLD: Duration = Duration::from_millis(3);

/// How often one of the processes is killed.
const PAUSE: Duration = Duration::from_millis(100);

type Counts = Arc<Vec<AtomicU64>>;

/// If this process was started as a gateway, serves all tenants, and writes a byte for each request: its tenant.
pub fn serve_if_told_to() {
    let Some(path) = env::var_os(PATH) else { return };
    let segment = Segment::open(Path::new(&path)).expect("a segment");
    let set = segment.set("set").expect("declared");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for tenant in 0..TENANTS {
            let set = set.clone();
            tokio::spawn(async move {
                let request = set.request().for_key([tenant]).expect("keyed");
                loop {
                    let outcome = request.acquire_async(None).await.expect("works");
                    let permit = outcome.into_result().expect("admitted");
                    say(tenant);
                    tokio::time::sleep(HOLD).await;
                    drop(permit);
                }
            });
        }
        std::future::pending::<()>().await;
    });
}

fn say(tenant: u8) {
    let mut output = std::io::stdout().lock();
    output.write_all(&[tenant]).expect("read");
    output.flush().expect("read");
}

/// What was measured.
pub struct Result {
    pub kills: usize,
    pub served: u64,
    pub places_lost: u64,
    /// The smallest number of requests that a tenant got, relative to the mean of all tenants.
    pub least: f64,
    pub most: f64,
}

/// Lets the processes serve for `time`, while one after another is killed and replaced.
pub fn measure(directory: &Path, time: Duration) -> Result {
    let path = directory.join("gateways");
    let limit = Limit::concurrency("places", PLACES).scope(Scope::AllKeys);
    let set = SetDeclaration::new("set")
        .keyed(Keyed::new(1_000))
        .waiters(4 * u32::from(TENANTS))
        .add_limit(limit);
    let segment = Segment::create(&path, &Declaration::new().add_set(set)).expect("a segment");
    let counts: Counts = Arc::new((0..TENANTS).map(|_| AtomicU64::new(0)).collect());
    let mut gateways: Vec<Child> = (0..GATEWAYS).map(|_| start(&path, &counts)).collect();
    let begun = Instant::now();
    let mut kills = 0;
    while begun.elapsed() < time {
        std::thread::sleep(PAUSE);
        let gateway = &mut gateways[kills % GATEWAYS];
        end(gateway);
        *gateway = start(&path, &counts);
        kills += 1;
    }
    gateways.iter_mut().for_each(end);
    let set = segment.set("set").expect("declared");
    let request = set.request().for_key("all of them").expect("keyed");
    let request = request.with("places", PLACES).expect("declared");
    let all = request.acquire(Duration::from_secs(60)).expect("works");
    let places_lost = match all.is_admitted() {
        true => 0,
        false => PLACES - request.peek().expect("works")[0].remaining,
    };
    let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let served: u64 = counts.iter().sum();
    let of_mean =
        |count: Option<&u64>| count.copied().unwrap_or_default() as f64 * f64::from(TENANTS) / served as f64;
    Result {
        kills,
        served,
        places_lost,
        least: of_mean(counts.iter().min()),
        most: of_mean(counts.iter().max()),
    }
}

fn start(path: &Path, counts: &Counts) -> Child {
    let program = env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .env(PATH, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut output = child.stdout.take().expect("piped");
    let counts = Arc::clone(counts);
    std::thread::spawn(move || {
        let mut bytes = [0; 4_096];
        while let Ok(read @ 1..) = output.read(&mut bytes) {
            for tenant in &bytes[..read] {
                counts[usize::from(*tenant)].fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    child
}

fn end(gateway: &mut Child) {
    gateway.kill().expect("killed");
    gateway.wait().expect("reaped");
}
