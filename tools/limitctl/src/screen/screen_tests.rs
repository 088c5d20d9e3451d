//! Compares the pages with the counters of a segment that is in use.

use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use shmlimit::declare::Scope;
use shmlimit::{Declaration, Keyed, Limit, Permit, Segment, SetDeclaration, Tier};

use super::signs::Signs;
use super::state::{Screen, Wish};
use crate::live::sampler::Sampler;
use crate::reveal::Reveal;
use crate::text::human;

/// A segment in use, and the screen that shows it.
struct Scene {
    _directory: tempfile::TempDir,
    segment: Segment,
    sampler: Sampler,
    screen: Screen,
}

impl Scene {
    fn new() -> Self {
        let day = Duration::from_secs(86_400);
        let declaration = Declaration::new()
            .add_set(
                SetDeclaration::new("chat")
                    .labels(true)
                    .add_limit(Limit::calls("requests", 4, day))
                    .add_limit(Limit::concurrency("in_flight", 8)),
            )
            .add_set(
                SetDeclaration::new("tenants")
                    .keyed(Keyed::new(100))
                    .add_limit(Limit::calls("requests", 5, day))
                    .add_limit(Limit::concurrency("in_flight", 5)),
            );
        Self::of(&declaration)
    }

    fn of(declaration: &Declaration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        let segment = Segment::create(&path, declaration).expect("created");
        let mut sampler = Sampler::open(&path, 10, Reveal::ALL).expect("opened");
        let screen = Screen::new(sampler.look().expect("copied"), Signs::of("C"));
        Self {
            _directory: directory,
            segment,
            sampler,
            screen,
        }
    }

    /// Makes one request, for a key if one is given. Returns the permit if admitted.
    fn ask(&self, set: &str, key: Option<&str>) -> Option<Permit<'static>> {
        let set = self.segment.set(set).expect("declared");
        let request = set.request();
        let outcome = match key {
            Some(key) => request.for_key(key).expect("keyed").try_acquire(),
            None => request.try_acquire(),
        };
        let admitted = outcome.expect("works").into_result();
        admitted.ok().map(Permit::into_owned)
    }

    fn look(&mut self) {
        let look = self.sampler.look().expect("copied");
        self.screen.update(look, &self.sampler).expect("copied");
    }

    fn press(&mut self, code: KeyCode) -> Wish {
        let wish = self.screen.press(KeyEvent::new(code, KeyModifiers::NONE));
        if wish == Wish::LookUp {
            self.screen.look_up(&self.sampler).expect("copied");
        }
        wish
    }

    fn type_text(&mut self, text: &str) {
        for character in text.chars() {
            self.press(KeyCode::Char(character));
        }
    }

    /// The contents of a terminal of this size, line by line.
    fn lines(&mut self, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("no real one");
        terminal
            .draw(|frame| super::draw(&mut self.screen, frame))
            .expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn shown(&mut self) -> String {
        self.lines(80, 24).join("\n")
    }

    /// The words that follow `start` in the line that begins with it.
    fn figures(&mut self, start: &str) -> Vec<String> {
        let shown = self.shown();
        let line = shown
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(start));
        let line = line.unwrap_or_else(|| panic!("no {start} in\n{shown}"));
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// The rate of a set or a limit as it is printed, from its count.
    fn rate(&self, counted: u32) -> String {
        let elapsed = self.screen.look().elapsed.expect("a look before");
        human::rate(Some(f64::from(counted) / elapsed.as_secs_f64()))
    }
}

#[test]
fn the_overview_has_the_rates_the_permits_and_how_much_is_used() {
    let mut scene = Scene::new();
    let held: Vec<_> = (0..7).map(|_| scene.ask("chat", None)).collect();
    scene.look();
    let (admitted, refused) = (scene.rate(4), scene.rate(3));
    assert_eq!(
        scene.figures("> chat")[..4],
        [&admitted, &refused, "4", "0"].map(str::to_owned)
    );
    let requests = scene.figures("requests");
    assert_eq!(requests[..2], [admitted.clone(), refused]);
    assert_eq!(requests[2..].join(" "), "############ 4 of 4");
    assert_eq!(scene.figures("in_flight")[2..].join(" "), "######...... 4 of 8");
    assert_eq!(scene.figures("in_flight")[0], admitted);
    // From here on, no requests are made.
    drop(held);
    scene.look();
    assert_eq!(scene.figures("> chat")[..4], ["0", "0", "0", "0"]);
    assert_eq!(scene.figures("in_flight")[2..].join(" "), "............ 0 of 8");
}

#[test]
fn nothing_is_cut_off_on_a_terminal_of_eighty_by_twenty_four() {
    let mut scene = Scene::new();
    let _held = [scene.ask("tenants", Some("acme")), scene.ask("chat", None)];
    scene.look();
    let overview = scene.lines(80, 24);
    assert!(overview[2].ends_with("USED, LAST MINUTES"), "{overview:#?}");
    assert!(overview[23].ends_with("tab processes"), "{overview:#?}");
    scene.press(KeyCode::Down);
    scene.press(KeyCode::Enter);
    let set = scene.lines(80, 24);
    assert!(set[23].ends_with("p pause"), "{set:#?}");
    assert!(set.iter().any(|line| line.ends_with("QUEUED")), "{set:#?}");
}

#[test]
fn sets_are_sorted_and_filtered() {
    let mut scene = Scene::new();
    let order = |scene: &mut Scene| {
        let shown = scene.shown();
        let place = |name: &str| shown.find(&format!(" {name} ")).unwrap_or(usize::MAX);
        (place("chat"), place("tenants"))
    };
    drop(scene.ask("tenants", Some("acme")));
    scene.look();
    let (chat, tenants) = order(&mut scene);
    assert!(chat < tenants);
    scene.press(KeyCode::Char('s'));
    let (chat, tenants) = order(&mut scene);
    assert!(tenants < chat);
    assert!(scene.shown().contains("by admitted"));

    scene.press(KeyCode::Char('/'));
    scene.type_text("TENq");
    assert!(scene.shown().contains("filter: TENq_"), "q is a letter now");
    assert!(scene.shown().contains("no set has this text"));
    scene.press(KeyCode::Backspace);
    scene.press(KeyCode::Enter);
    assert!(scene.shown().contains("with \"TEN\""));
    assert_eq!(order(&mut scene).0, usize::MAX);
    scene.press(KeyCode::Esc);
    assert!(order(&mut scene).0 < usize::MAX);
}

#[test]
fn a_set_has_its_holders_with_labels_and_its_queue() {
    let mut scene = Scene::new();
    let chat = scene.segment.set("chat").expect("declared");
    let request = chat.request().label("nightly\u{1b}[2J");
    let held = request.try_acquire().expect("works");
    scene.look();
    scene.press(KeyCode::Enter);
    let shown = scene.shown();
    let pid = std::process::id().to_string();
    for part in [
        "set chat",
        "admitted 1   refused 0",
        "[holders 1]",
        "in_flight 1",
        r"nightly\u{1b}[2J",
        &pid,
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    assert!(!shown.contains("hottest keys"), "it has none");
    scene.press(KeyCode::Tab);
    assert!(scene.shown().contains("[queue 0]"));
    scene.press(KeyCode::Tab);
    drop(held);
    scene.look();
    assert!(scene.shown().contains("[holders 0]"));
    scene.press(KeyCode::Esc);
    assert!(scene.shown().contains("> chat"));
}

#[test]
fn who_waits_for_what_all_keys_have_is_shown_with_its_share() {
    let places = Limit::concurrency("places", 1).scope(Scope::AllKeys);
    let set = SetDeclaration::new("llm").keyed(Keyed::new(10)).add_limit(places);
    let set = set.add_tier(Tier::new("gold").weight(4));
    let mut scene = Scene::of(&Declaration::new().add_set(set));
    let _held = scene.ask("llm", Some("first"));
    let llm = scene.segment.set("llm").expect("declared");
    let mut context = Context::from_waker(Waker::noop());
    let _waiting = [("acme", "gold"), ("globex", "default")].map(|(key, tier)| {
        let request = llm.request().for_key(key).and_then(|it| it.with_tier(tier));
        let mut waiting = Box::pin(request.expect("keyed").acquire_async(None));
        assert!(
            waiting.as_mut().poll(&mut context).is_pending(),
            "the place is taken"
        );
        waiting
    });
    scene.look();
    scene.press(KeyCode::Enter);
    scene.press(KeyCode::Tab);
    scene.press(KeyCode::Tab);
    let shown = scene.shown();
    for part in [
        "[queue 2]",
        "places 1 of acme  share 80 % (weight 4)",
        "places 1 of globex  share 20 % (weight 1)",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
}

#[test]
fn a_key_is_opened_from_the_list_of_the_hottest() {
    let mut scene = Scene::new();
    for _ in 0..7 {
        drop(scene.ask("tenants", Some("acme")));
    }
    drop(scene.ask("tenants", Some("globex")));
    scene.look();
    scene.press(KeyCode::Down);
    scene.press(KeyCode::Enter);
    assert!(scene.shown().contains("[hottest keys]"));
    let (admitted, refused) = (scene.rate(5), scene.rate(2));
    assert_eq!(scene.figures("acme"), [admitted, refused, "0".to_owned()]);
    scene.press(KeyCode::Enter);
    let shown = scene.shown();
    for part in [
        "key",
        "acme",
        "admitted 5   refused 2",
        "####################  0 of 5",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    // The same works through the list of holders.
    let held = scene.ask("tenants", Some("globex"));
    scene.look();
    scene.press(KeyCode::Esc);
    scene.press(KeyCode::Tab);
    scene.press(KeyCode::Enter);
    let shown = scene.shown();
    assert!(shown.contains("globex") && shown.contains("held 1"), "{shown}");
    drop(held);
}

#[test]
fn a_paused_screen_stays_as_it_is() {
    let mut scene = Scene::new();
    scene.look();
    scene.press(KeyCode::Char('p'));
    let before = scene.shown();
    assert!(before.contains("PAUSED at"));
    drop(scene.ask("chat", None));
    scene.look();
    assert_eq!(scene.shown(), before);
    scene.press(KeyCode::Char('p'));
    scene.look();
    assert!(!scene.shown().contains("PAUSED"));
    assert!(scene.shown().contains("1 of 4"));
}

#[test]
fn processes_are_listed_by_name_and_number() {
    let mut scene = Scene::new();
    scene.press(KeyCode::Tab);
    let pid = std::process::id().to_string();
    assert!(scene.shown().contains(&pid), "{}", scene.shown());
    scene.press(KeyCode::Char('/'));
    scene.type_text(&pid);
    assert!(scene.figures(&pid).contains(&"alive".to_owned()));
    scene.type_text("no such process");
    assert!(scene.shown().contains("none"));
}

#[test]
fn any_size_can_be_drawn_and_a_long_list_follows_the_selection() {
    let mut scene = Scene::new();
    let tenants = scene.segment.set("tenants").expect("declared");
    for number in 0..10 {
        let key = format!("key {number}");
        drop(
            tenants
                .request()
                .for_key(key)
                .expect("keyed")
                .try_acquire()
                .expect("works"),
        );
    }
    scene.look();
    scene.press(KeyCode::Down);
    for _ in 0..2 {
        for (width, height) in [(1, 1), (39, 24), (40, 10), (80, 24), (300, 90)] {
            assert_eq!(scene.lines(width, height).len(), usize::from(height));
        }
        scene.press(KeyCode::Enter);
    }
    scene.press(KeyCode::Esc);
    let last = |scene: &mut Scene| {
        let lines = scene.lines(80, 17);
        lines.iter().filter(|line| line.starts_with("key ")).count()
    };
    let of_list = last(&mut scene);
    assert!(0 < of_list && of_list < 10, "{of_list}");
    scene.press(KeyCode::End);
    assert_eq!(last(&mut scene), of_list);
}

#[test]
fn keys_end_it() {
    let mut scene = Scene::new();
    assert_eq!(scene.press(KeyCode::Char('x')), Wish::Nothing);
    assert_eq!(scene.press(KeyCode::Char('q')), Wish::Quit);
    scene.press(KeyCode::Char('/'));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(scene.screen.press(interrupt), Wish::Quit);
}
