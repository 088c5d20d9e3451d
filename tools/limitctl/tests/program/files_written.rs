//! Files that verbs write, and what happens to a file that is already at the path.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::support::host::has;
use crate::support::{self, command, create, directory, limitctl, run, text};

/// The beginning of an exposition.
const EXPORTED: &str = "# HELP shmlimit_";

fn export(segment: &Path, output: &Path) -> support::Run {
    run(["export", "--prometheus", "--output", text(output), text(segment)])
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A file's identity and a checksum of its contents, without following a link.
fn state(path: &Path) -> (u64, u32, u64) {
    let found = fs::symlink_metadata(path).expect("there");
    let mut sum = DefaultHasher::new();
    if found.is_file() {
        fs::read(path).expect("readable").hash(&mut sum);
    }
    (found.ino(), found.mode(), sum.finish())
}

/// One of each kind of file that must not be overwritten, next to a segment that one of them uses.
fn foreign_files(directory: &Path, segment: &Path) -> Vec<PathBuf> {
    let at = |name: &str| directory.join(name);
    let kept = at("kept");
    run(["checkpoint", text(segment), text(&kept)]).ended(0);
    symlink(segment, at("link to a segment")).expect("a link");
    symlink(&kept, at("link to a checkpoint")).expect("a link");
    fs::copy(segment, at("another segment")).expect("copied");
    fs::create_dir(at("a directory")).expect("made");
    // The magic number of a file under construction is written last.
    let under_construction = at(".limits.1.2.3.shmlimit-new");
    fs::write(&under_construction, [0; 8192]).expect("written");
    symlink(&under_construction, at("link to what is made")).expect("a link");
    [
        "limits",
        "link to a segment",
        "link to a checkpoint",
        "another segment",
        "a directory",
        ".limits.1.2.3.shmlimit-new",
        "link to what is made",
    ]
    .map(at)
    .into()
}

#[test]
fn an_export_is_written_over_no_segment_no_checkpoint_and_nothing_under_construction() {
    let directory = directory();
    let segment = create(directory.path());
    let mut refused = foreign_files(directory.path(), &segment);
    refused.push(directory.path().join("kept"));
    let names = names_in(directory.path());
    for path in &refused {
        let before = state(path);
        let ended = export(&segment, path);
        assert_ne!(ended.code, 0, "{}", path.display());
        assert!(ended.stderr.contains(text(path)), "{ended:?}");
        assert_eq!(state(path), before, "{}", path.display());
    }
    assert_eq!(names_in(directory.path()), names, "nothing is left over");
    // A segment is recognised under another name, too.
    let second = directory.path().join("second name");
    fs::hard_link(&segment, &second).expect("a link");
    let before = state(&second);
    let ended = export(&directory.path().join("another segment"), &second).ended(73);
    assert!(ended.stderr.contains("is a segment"), "{ended:?}");
    assert_eq!(state(&second), before);
}

#[test]
fn an_export_is_renamed_over_nothing_and_regular_files_and_written_directly_into_everything_else() {
    let directory = directory();
    let segment = create(directory.path());
    let at = |name: &str| directory.path().join(name);
    export(&segment, &at("nothing")).ended(0);
    fs::write(at("regular"), "former").expect("written");
    let former = state(&at("regular")).0;
    export(&segment, &at("regular")).ended(0);
    assert_ne!(state(&at("regular")).0, former, "it was replaced");
    // A link stays a link. Its target is the same file as before or, if there was none, a new one.
    fs::write(at("target"), "former").expect("written");
    let target = state(&at("target")).0;
    symlink("target", at("link")).expect("a link");
    symlink("fresh", at("dangling")).expect("a link");
    for name in ["link", "dangling"] {
        export(&segment, &at(name)).ended(0);
        assert!(fs::symlink_metadata(at(name)).expect("there").is_symlink());
    }
    assert_eq!(state(&at("target")).0, target);
    for name in ["nothing", "regular", "target", "fresh"] {
        let written = fs::read_to_string(at(name)).expect("there");
        assert!(
            written.starts_with(EXPORTED) && !written.contains("former"),
            "{name}: {written}"
        );
    }
    // Anything that is not a regular file is written to, and stays what it is: a pipe, also through a link, and
    // standard output by its name.
    mkfifo(&at("pipe"), Mode::S_IRWXU).expect("a pipe");
    symlink("pipe", at("link to a pipe")).expect("a link");
    let pipes = ["pipe", "link to a pipe"];
    // Tried before there is a reader, which processes that other tests start inherit for a moment.
    for name in pipes {
        let unread = export(&segment, &at(name)).ended(69);
        assert!(unread.stderr.contains("cannot write"), "{unread:?}");
    }
    for name in pipes {
        let mut reader = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(at("pipe"))
            .expect("a reader waits for no writer");
        export(&segment, &at(name)).ended(0);
        let mut read = String::new();
        reader.read_to_string(&mut read).expect("UTF-8");
        assert!(read.starts_with(EXPORTED), "{read}");
        let found = fs::symlink_metadata(at("pipe")).expect("there");
        assert!(found.file_type().is_fifo());
    }
    let said = export(&segment, Path::new("/dev/stdout")).ended(0);
    assert!(said.stdout.starts_with(EXPORTED), "{said:?}");
    let device = at("null");
    if has("mknod", &[text(&device), "c", "1", "3"]) {
        match fs::OpenOptions::new().write(true).open(&device) {
            Ok(_) => {
                export(&segment, &device).ended(0);
                assert!(
                    fs::symlink_metadata(&device)
                        .expect("there")
                        .file_type()
                        .is_char_device()
                );
            }
            Err(error) => println!("skipped: no devices here: {error}"),
        }
    }
    let leftovers = names_in(directory.path());
    assert!(
        leftovers.iter().all(|name| !name.starts_with('.')),
        "{leftovers:?}"
    );
}

#[test]
fn a_checkpoint_is_written_over_checkpoints_and_empty_files_alone_whatever_their_size() {
    let directory = directory();
    let segment = create(directory.path());
    let mut refused = foreign_files(directory.path(), &segment);
    let at = |name: &str| directory.path().join(name);
    let kept = fs::read(at("kept")).expect("there");
    let size = kept.len();
    // These are as large as a checkpoint: zeros, a segment, a text.
    let mut text_of_that_size = b"a diary, of many years".to_vec();
    text_of_that_size.resize(size, b'.');
    let mut segment_of_that_size = fs::read(&segment).expect("readable");
    segment_of_that_size.resize(size, 0);
    for (name, bytes) in [
        ("zeros", vec![0; size]),
        ("segment of that size", segment_of_that_size),
        ("text of that size", text_of_that_size),
        ("text", b"notes".to_vec()),
        ("few zeros", vec![0; 100]),
    ] {
        fs::write(at(name), bytes).expect("written");
        refused.push(at(name));
    }
    mkfifo(&at("pipe"), Mode::S_IRWXU).expect("a pipe");
    refused.push(at("pipe"));
    refused.push("/dev/null".into());
    let names = names_in(directory.path());
    for path in &refused {
        let before = state(path);
        let ended = run(["checkpoint", text(&segment), text(path)]);
        assert_ne!(ended.code, 0, "{}", path.display());
        let after = state(path);
        assert_eq!(after.0, before.0, "{}", path.display());
        // The segment records that a process was attached.
        assert!(after == before || *path == segment, "{}", path.display());
    }
    assert_eq!(names_in(directory.path()), names, "nothing is left over");
    fs::write(at("empty"), "").expect("written");
    fs::write(at("torn"), {
        // Both checksums are wrong.
        let mut torn = kept;
        torn[64] ^= 1;
        torn[4096 + 64] ^= 1;
        torn
    })
    .expect("written");
    fs::write(at("of another size"), b"SHMLCKPT and no more").expect("written");
    for name in ["kept", "empty", "torn", "of another size"] {
        run(["checkpoint", text(&segment), text(&at(name))]).ended(0);
        assert_eq!(
            fs::metadata(at(name)).expect("there").len(),
            size as u64,
            "{name}"
        );
    }
    run(["inspect", text(&segment)]).ended(0);
}

#[test]
fn what_a_signal_ends_while_it_creates_leaves_a_whole_segment_or_none() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let directory = directory();
        let config = directory.path().join("limits.toml");
        let declaration = "[[set]]\nname = \"k\"\nkeyed = { max_keys = 300_000 }\n\
                           [[set.limit]]\nname = \"r\"\nkind = \"calls\"\ncapacity = 3\nwindow = \"1h\"\n";
        fs::write(&config, declaration).expect("written");
        let run_directory = directory.path().join("run");
        fs::create_dir(&run_directory).expect("made");
        let path = run_directory.join("limits");
        let mut creating = limitctl()
            .args(["create", text(&path), text(&config)])
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        let deadline = Instant::now() + support::TIMEOUT;
        while names_in(&run_directory).is_empty() {
            assert!(Instant::now() < deadline, "it creates nothing");
            std::thread::yield_now();
        }
        let pid = Pid::from_raw(i32::try_from(creating.id()).expect("a pid"));
        kill(pid, signal).expect("it was not waited for");
        creating.wait().expect("a child of ours");
        assert_eq!(names_in(&run_directory), ["limits"], "{signal}");
        run(["inspect", text(&path)]).ended(0);
    }
}

/// Runs a script in a shell; it ends with the command under test.
fn in_shell(script: &str, arguments: &[&str]) -> support::Run {
    let mut shell: Command = command("sh");
    shell
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_limitctl")])
        .args(arguments);
    support::run_command(&mut shell)
}

#[test]
fn a_largest_file_size_is_an_error_where_a_file_is_made_and_leaves_nothing() {
    let directory = directory();
    let segment = create(directory.path());
    let at = |name: &str| directory.path().join(name);
    fs::write(at("former.prom"), "former").expect("written");
    run(["checkpoint", text(&segment), text(&at("kept"))]).ended(0);
    let kept = fs::read(at("kept")).expect("there");
    let names = names_in(directory.path());
    let (new, prom, former) = (at("new"), at("new.prom"), at("former.prom"));
    let (fresh, written) = (at("fresh"), at("kept"));
    let limited = |arguments: &[&str]| in_shell("ulimit -f 1; exec \"$@\"", arguments);
    for arguments in [
        &["create", "--set", "api", "--calls", "r=1/1h", text(&new)][..],
        &[
            "create",
            "--on-mismatch",
            "error",
            "--set",
            "api",
            "--calls",
            "r=1/1h",
            text(&new),
        ],
        &["checkpoint", text(&segment), text(&fresh)],
        &["checkpoint", text(&segment), text(&written)],
        &["export", "--prometheus", "--output", text(&prom), text(&segment)],
        &[
            "export",
            "--prometheus",
            "--output",
            text(&former),
            text(&segment),
        ],
    ] {
        let ended = limited(arguments);
        let code = if arguments[0] == "export" { 69 } else { 73 };
        assert_eq!(ended.code, code, "{arguments:?}: {ended:?}");
        if code == 73 {
            assert!(ended.stderr.contains("ulimit -f"), "{ended:?}");
        }
        assert_eq!(names_in(directory.path()), names, "{arguments:?}");
    }
    assert_eq!(fs::read(&former).expect("there"), b"former");
    assert!(
        fs::read(&written).expect("there") == kept,
        "the checkpoint is as it was"
    );
    // A verb that creates no file needs no room.
    limited(&["exec", text(&segment), "api", "--", "true"]).ended(0);
}

/// This test's own memory cgroup, removed when it is dropped.
struct MemoryGroup {
    directory: PathBuf,
}

impl MemoryGroup {
    /// `None` if this process may not make one.
    fn with_limit(bytes: u64) -> Option<Self> {
        let [first, second] = [
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
            ),
            ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
        ];
        let is_first = Path::new(first.0).join(first.1).exists();
        let (root, limit, with_swap) = if is_first { first } else { second };
        let name = format!("shmlimit-test-{}", std::process::id());
        let group = Self {
            directory: Path::new(root).join(name),
        };
        let made = fs::create_dir(&group.directory)
            .and_then(|()| fs::write(group.directory.join(limit), bytes.to_string()));
        if let Err(error) = made {
            println!("skipped: no memory cgroup of its own: {error}");
            return None;
        }
        // The kernel may not account for swap.
        let swap = if is_first { bytes } else { 0 };
        let _ = fs::write(group.directory.join(with_swap), swap.to_string());
        Some(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

#[test]
fn a_segment_larger_than_the_memory_cgroup_is_an_error_and_one_that_fits_is_made() {
    let Some(group) = MemoryGroup::with_limit(50 << 20) else {
        return;
    };
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let at = |name: &str| directory.path().join(name);
    let declare = |name: &str, keys: u64| {
        let declaration = format!(
            "[[set]]\nname = \"k\"\nkeyed = {{ max_keys = {keys} }}\n\
             [[set.limit]]\nname = \"r\"\nkind = \"calls\"\ncapacity = 3\nwindow = \"1h\"\n"
        );
        fs::write(at(name), declaration).expect("written");
        at(name)
    };
    let (large, small) = (declare("large.toml", 1_000_000), declare("small.toml", 100_000));
    let names = names_in(directory.path());
    let inside = format!(
        "echo $$ > {}/cgroup.procs && exec \"$@\"",
        group.directory.display()
    );
    let path = at("limits");
    let create = |declaration: &Path| in_shell(&inside, &["create", text(&path), text(declaration)]);
    let refused = create(&large).ended(73);
    assert!(refused.stderr.contains("memory cgroup"), "{refused:?}");
    assert_eq!(names_in(directory.path()), names, "nothing is left over");
    create(&small).ended(0);
    // The pages of the segment count, and so do those that another segment would need.
    run(["inspect", text(&path)]).ended(0);
    fs::remove_file(&path).expect("there");
}
