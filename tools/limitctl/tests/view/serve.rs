//! The page in a real browser, and JSON and metrics over HTTP, compared with the counters; and bad requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support;
use crate::support::{
    Actor, TIMEOUT, create, create_declared, directory, limitctl, lines_of, run, run_command, text,
};
use serde_json::{Value, json};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};

/// `limitctl serve` on its own port.
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(segments: &[&Path]) -> Self {
        Self::start_with(&[], segments)
    }

    pub fn start_with(options: &[&str], segments: &[&Path]) -> Self {
        let mut child = limitctl()
            .args(["serve", "--every", "50ms"])
            .args(options)
            .arg("0")
            .args(segments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = lines_of(child.stdout.take().expect("piped"));
        let line = lines.recv_timeout(TIMEOUT).expect("it says where");
        let address = line
            .strip_prefix("serving http://")
            .and_then(|rest| rest.strip_suffix('/'))
            .and_then(|address| address.parse().ok())
            .unwrap_or_else(|| panic!("{line}"));
        Self { child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        stream
    }

    /// The response to these bytes, read until the connection ends.
    fn answer_to(&self, request: &str) -> String {
        let mut stream = self.connect();
        // It may stop reading before the end.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("UTF-8")
    }

    fn request(&self, method: &str, path: &str, host: &str) -> (u16, String) {
        let answer = self.answer_to(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        (status.unwrap_or_else(|| panic!("{answer}")), body.to_owned())
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.request("GET", path, &self.address.to_string())
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// The response, once it is as wanted.
    fn wait_for(&self, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = std::time::Instant::now() + TIMEOUT;
        loop {
            let (_, body) = self.get(path);
            let value = serde_json::from_str(&body).expect("JSON");
            if is_wanted(&value) {
                return value;
            }
            assert!(std::time::Instant::now() < deadline, "{value}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().expect("it was not waited for");
        self.child.wait().expect("a child of ours");
    }
}

fn sample(exposition: &str, start: &str) -> u64 {
    let line = exposition.lines().find_map(|line| line.strip_prefix(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in\n{exposition}"));
    line.trim().parse().expect("a number")
}

#[test]
fn metrics_under_load_are_those_of_the_instant_and_those_of_export() {
    let directory = directory();
    let path = create(directory.path());
    let server = Server::start(&[&path]);
    let spinning = Actor::start("spin", &path);
    let reader = SegmentReader::open(&path).expect("a segment");
    let refused = || reader.snapshot().expect("copied").sets[0].counts.refused_rate;
    let series = format!(
        "shmlimit_requests_total{{segment=\"{}\",set=\"api\",limit=\"\",result=\"refused\"}}",
        text(&path)
    );
    for _ in 0..5 {
        let before = refused();
        let (status, body) = server.get("/metrics");
        let after = refused();
        assert_eq!(status, 200);
        assert!(
            (before..=after).contains(&sample(&body, &series)),
            "{before} {after}"
        );
    }
    drop(spinning);
    let (_, body) = server.get("/metrics");
    assert_eq!(body, run(["export", "--prometheus", text(&path)]).ended(0).stdout);
    // What Prometheus asks for.
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
    let host = server.address;
    let answer = server.answer_to(&format!(
        "GET /metrics HTTP/1.1\r\nHost: {host}\r\nAccept: {accept}\r\n\r\n"
    ));
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert_eq!(
        body,
        run(["export", "--openmetrics", text(&path)]).ended(0).stdout
    );
}

#[test]
fn json_has_what_inspect_has_and_what_happens_now() {
    let directory = directory();
    let path = create(directory.path());
    let missing = directory.path().join("not there");
    let server = Server::start(&[&path, &missing]);
    let holding = Actor::start("hold", &path);
    let look = server.wait_for("/api/segments/0", |look| look["sets"][0]["active"] == 1);
    let inspected = run(["inspect", "--json", text(&path)]).ended(0).json();
    for part in ["path", "participants", "participant_capacity"] {
        assert_eq!(look[part], inspected[part], "{part}");
    }
    assert_eq!(look["sets"][0]["counts"], inspected["sets"][0]["counts"]);
    assert_eq!(look["sets"][0]["holds"][0]["owner_pid"], holding.pid());
    server.wait_for("/api/segments/0", |look| {
        let history = look["sets"][0]["activity"]["history"].as_array();
        let admitted = history
            .into_iter()
            .flatten()
            .filter_map(|rates| rates["admitted"].as_f64());
        admitted.sum::<f64>() > 0.0
    });
    let list = server.json("/api/segments");
    assert_eq!(
        (&list[0]["state"], &list[0]["error"]),
        (&"ok".into(), &Value::Null)
    );
    assert!(
        list[1]["error"].as_str().expect("an error").contains("not there"),
        "{list}"
    );
    let (status, body) = server.get("/api/segments/1");
    assert!(status == 503 && body.contains("error"), "{status} {body}");
    // Once it exists, it is shown.
    std::fs::rename(&path, &missing).expect("renamed");
    server.wait_for("/api/segments", |list| {
        list[0]["state"] == "removed" && list[1]["error"].is_null()
    });
}

/// This host only knows what it has leased, which says nothing about what is used.
#[test]
fn how_much_is_used_is_not_said_of_limits_that_hosts_share() {
    const SHARED: &str = r#"
[fleet]
url = "redis://127.0.0.1:1"
[[set]]
name = "api"
  [[set.limit]]
  name = "calls"
  kind = "calls"
  capacity = 500
  window = "365d"
  algorithm = "fixed_window"
  align = "utc"
  fleet = { key = "org/calls" }
[[set]]
name = "tenants"
keyed = 100
  [[set.limit]]
  name = "quota"
  kind = "calls"
  capacity = 400
  window = "365d"
  algorithm = "fixed_window"
  align = "utc"
  fleet = { key = "org/tenants" }
  [[set.limit]]
  name = "local"
  kind = "calls"
  capacity = 300
  window = "365d"
"#;
    let directory = directory();
    let path = create_declared(directory.path(), "limits", SHARED);
    let segment = Segment::open(&path).expect("created");
    let tenants = segment.set("tenants").expect("declared");
    let asked = tenants.request().for_key("acme").expect("keyed").check();
    assert!(asked.expect("works").is_admitted(), "a unit need not be leased");
    let server = Server::start(&[&path]);
    let look = server.json("/api/segments/0");
    let fullest = look["sets"][1]["activity"]["fullest"].as_array().expect("keys");
    let limits: Vec<_> = fullest.iter().map(|found| &found["limit"]).collect();
    assert_eq!(limits, ["local"], "{look}");
    let watched = run(["watch", "--json", "--count", "1", text(&path)])
        .ended(0)
        .json();
    let usages = |set: usize, limit: usize| &watched["sets"][set]["limits"][limit]["usage"];
    assert_eq!(usages(0, 0), &json!({"leased": {"units": 0}}));
    assert_eq!(usages(1, 0), "by_key");
    if let Some(page) = first_page(&server, directory.path()) {
        assert!(page.contains("0 leased"), "{page}");
        assert!(!page.contains(" of 500") && !page.contains(" of 400"), "{page}");
    }
}

#[test]
fn nothing_can_be_changed_and_no_other_site_can_read() {
    let directory = directory();
    let path = create(directory.path());
    let server = Server::start(&[&path]);
    let own = server.address.to_string();
    for path in ["/", "/metrics", "/api/segments", "/api/segments/0"] {
        let (status, body) = server.request("HEAD", path, &own);
        assert_eq!((status, body.as_str()), (200, ""), "{path}");
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            assert_eq!(server.request(method, path, &own).0, 405, "{method} {path}");
        }
        assert_eq!(server.request("GET", path, "limits.example.org").0, 421, "{path}");
    }
    for path in [
        "/api/segments/1",
        "/api/segments/x",
        "/api",
        "/../etc/passwd",
        "/api/segments/-1",
    ] {
        assert_eq!(server.get(path).0, 404, "{path}");
    }
    let head = server.answer_to(&format!("GET / HTTP/1.1\r\nHost: {own}\r\n\r\n"));
    assert!(
        head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    let page = server.get("/").1;
    for reference in ["http://", "https://", "src=", "@import", "url("] {
        let found = page.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !found.contains(reference),
            "the page needs nothing from elsewhere: {reference}"
        );
    }
    let participants = SegmentReader::open(&path)
        .expect("a segment")
        .snapshot()
        .expect("copied")
        .participants;
    assert!(participants.is_empty(), "looking is no attaching");
}

#[test]
fn requests_that_are_no_good_keep_no_one_from_being_answered() {
    let directory = directory();
    let path = create(directory.path());
    let server = Server::start(&[&path]);
    // Connections that send nothing, or only the beginning of a request.
    let silent: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
    for mut stream in &silent[..20] {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: ").expect("written");
    }
    assert_eq!(server.get("/api/segments").0, 200);
    drop(silent);
    // Longer than any request needs to be.
    let long = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    assert!(!server.answer_to(&long).contains(" 200 "));
    assert!(!server.answer_to("no HTTP at all\r\n\r\n").contains(" 200 "));
    // More than are served at a time: the last one is served when the earlier ones have ended.
    let many: Vec<TcpStream> = (0..80).map(|_| server.connect()).collect();
    drop(many);
    assert_eq!(server.get("/").0, 200);
}

#[test]
fn listens_for_this_host_alone_unless_another_address_is_given() {
    let directory = directory();
    let path = create(directory.path());
    let server = Server::start(&[&path]);
    assert!(server.address.ip().is_loopback());
    let taken = run(["serve", &server.address.to_string(), text(&path)]).ended(69);
    assert!(taken.stderr.contains("cannot listen at"), "{taken:?}");
    run(["serve", "nowhere", text(&path)]).ended(64);
    run(["serve", "0"]).ended(64);
}

/// The page that a server shows first, as the browser shows it, if the machine has a browser.
pub fn first_page(server: &Server, directory: &Path) -> Option<String> {
    let url = format!("http://{}/", server.address);
    Some(document(browser()?, &directory.join("profile"), &url))
}

/// The browser, if the machine has one.
fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let is_there = |name: &&str| {
        let asked = Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    };
    let found = names.into_iter().find(is_there);
    if found.is_none() {
        println!("skipped: no chromium");
    }
    found
}

/// The document of a page after the browser has run it for some seconds of virtual time.
fn document(browser: &str, profile: &Path, url: &str) -> String {
    let mut command = support::command(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--virtual-time-budget=3000",
        "--dump-dom",
    ]);
    command.arg(format!("--user-data-dir={}", text(profile))).arg(url);
    run_command(&mut command).ended(0).stdout
}

/// The text of the first element with this `data-figure` after a place in the document.
fn figure<'a>(document: &'a str, after: &str, figure: &str) -> &'a str {
    let (_, rest) = document
        .split_once(after)
        .unwrap_or_else(|| panic!("no {after} in {document}"));
    let (_, rest) = rest
        .split_once(&format!("data-figure=\"{figure}\">"))
        .unwrap_or_else(|| panic!("no {figure} in {rest}"));
    rest.split('<').next().expect("text")
}

#[test]
fn a_browser_shows_the_counters() {
    let Some(browser) = browser() else {
        return;
    };
    let directory = directory();
    let path = directory.path().join("limits");
    let day = std::time::Duration::from_secs(86_400);
    let calls = |capacity: u64| Limit::calls("requests", capacity, day);
    let chat = SetDeclaration::new("chat <b>").labels(true).add_limit(calls(4));
    let chat = chat.add_limit(Limit::concurrency("in_flight", 8));
    let tenants = SetDeclaration::new("tenants")
        .keyed(Keyed::new(100))
        .add_limit(calls(5));
    let declaration = Declaration::new().add_set(chat).add_set(tenants);
    let segment = Segment::create(&path, &declaration).expect("created");
    let chat = segment.set("chat <b>").expect("declared");
    let request = chat.request().label("<script>document.title = 'obeyed'</script>");
    let held: Vec<_> = (0..7).map(|_| request.try_acquire().expect("works")).collect();
    let tenants = segment.set("tenants").expect("declared");
    let request = tenants.request().for_key("acme & <i>sons</i>").expect("keyed");
    for _ in 0..7 {
        let _ = request.check().expect("works").is_admitted();
    }
    let server = Server::start_with(&["--reveal"], &[&path]);
    let url = format!("http://{}/", server.address);
    let profile = directory.path().join("profile");

    let overview = document(browser, &profile, &url);
    // How its name is escaped in an attribute depends on the browser's version.
    let of_chat = "data-set=\"chat ";
    assert_eq!(figure(&overview, of_chat, "active"), "4", "{overview}");
    assert_eq!(figure(&overview, of_chat, "queued"), "0");
    for shown in [
        "chat &lt;b&gt;",
        " 4 of 4",
        " 4 of 8",
        " 5 of 5",
        " by acme &amp; &lt;i&gt;sons&lt;/i&gt;, the fullest key",
        "acme &amp; &lt;i&gt;sons&lt;/i&gt; (2)",
        text(&path),
        "<polyline",
    ] {
        assert!(overview.contains(shown), "{shown} in {overview}");
    }

    let of_set = document(browser, &profile, &format!("{url}#0/chat%20%3Cb%3E"));
    let counts = segment.snapshot().expect("copied").sets[0].counts;
    assert_eq!((counts.admitted, counts.refused_rate), (4, 3));
    assert_eq!(figure(&of_set, "<main", "admitted"), "4");
    assert_eq!(figure(&of_set, "<main", "refused"), "3");
    assert!(of_set.contains("&lt;script&gt;document.title"), "{of_set}");
    assert!(!of_set.contains("obeyed</title>"), "{of_set}");
    assert!(
        of_set.contains(&std::process::id().to_string()),
        "the holder: {of_set}"
    );

    let of_keys = document(browser, &profile, &format!("{url}#0/tenants"));
    assert_eq!(figure(&of_keys, "<main", "admitted"), "5");
    let (_, most_refused) = of_keys.split_once("most refused keys").expect("a list");
    let cells = "sons&lt;/i&gt;</td><td class=\"number\">5</td><td class=\"number\">2</td>";
    assert!(most_refused.contains(cells), "{most_refused}");
    assert!(
        of_keys.contains("acme &amp; &lt;i&gt;sons&lt;/i&gt;"),
        "{of_keys}"
    );
    drop(held);
}
