//! The files for hosts and containers: installed below another root, and read by the tools that they are for. Reports
//! which tools are missing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::support::host::has;
use crate::support::{command, directory, run_command, text, verbs};
use shmlimit::Declaration;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// Installs everything below a directory.
fn install(root: &Path) {
    let mut install = command(packaging().join("install"));
    install
        .env("DESTDIR", root)
        .env("LIMITCTL", env!("CARGO_BIN_EXE_limitctl"))
        .env_remove("PREFIX");
    run_command(&mut install).ended(0);
}

#[test]
fn the_program_is_installed_with_a_page_for_each_verb_and_completions() {
    let root = directory();
    install(root.path());
    let share = root.path().join("usr/share");
    let program = root.path().join("usr/bin/limitctl");
    assert_eq!(
        fs::metadata(&program).expect("installed").permissions().mode() & 0o777,
        0o755
    );
    let verbs: Vec<String> = verbs();
    assert!(
        verbs.len() > 10 && verbs.contains(&"doctor".to_owned()),
        "{verbs:?}"
    );
    for verb in &verbs {
        let page = share.join(format!("man/man1/limitctl-{verb}.1"));
        let page = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{verb}: {error}"));
        assert!(page.contains(".SH NAME"), "{verb}");
    }
    assert!(share.join("man/man1/limitctl.1").exists());
    assert!(share.join("man/man1/limitctl-fleet-drain.1").exists());
    let bash = share.join("bash-completion/completions/limitctl");
    assert!(fs::read_to_string(&bash).expect("installed").contains("doctor"));
    if has("bash", &["--version"]) {
        run_command(command("bash").args(["-n", text(&bash)])).ended(0);
    }
    assert!(share.join("zsh/site-functions/_limitctl").exists());
    assert!(share.join("fish/vendor_completions.d/limitctl.fish").exists());
    assert!(root.path().join("etc/shmlimit").is_dir());
}

#[test]
fn another_prefix_is_that_of_the_units_as_well() {
    let root = directory();
    let mut install = command(packaging().join("install"));
    install
        .env("DESTDIR", root.path())
        .env("PREFIX", "/opt/limits")
        .env("LIMITCTL", env!("CARGO_BIN_EXE_limitctl"));
    run_command(&mut install).ended(0);
    let unit = root.path().join("opt/limits/lib/systemd/system/shmlimit.service");
    let unit = fs::read_to_string(unit).expect("installed");
    assert!(
        unit.contains("ExecStart=/opt/limits/bin/limitctl create "),
        "{unit}"
    );
}

/// All files below a directory, without the ending of compressed ones.
fn files_below(root: &Path) -> BTreeSet<String> {
    let listed = run_command(command("find").current_dir(root).args([".", "-type", "f"]));
    let names = listed.stdout.lines();
    names
        .map(|name| name.strip_suffix(".gz").unwrap_or(name).to_owned())
        .collect()
}

#[test]
fn a_debian_package_has_what_is_installed_and_leaves_nothing_behind() {
    if !has("dpkg-deb", &["--version"]) {
        return;
    }
    let [installed, packed, unpacked] = [(); 3].map(|()| directory());
    install(installed.path());
    let mut build = command(packaging().join("deb"));
    build
        .arg(packed.path())
        .env("LIMITCTL", env!("CARGO_BIN_EXE_limitctl"))
        // It takes a minute to compress a program that is not optimised.
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    run_command(&mut build).ended(0);
    let packages: Vec<PathBuf> = fs::read_dir(packed.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    let [package] = &packages[..] else {
        panic!("{packages:?}");
    };
    run_command(command("dpkg-deb").args(["--extract", text(package), text(unpacked.path())])).ended(0);
    let mut expected = files_below(installed.path());
    expected.extend(["copyright", "changelog"].map(|name| format!("./usr/share/doc/limitctl/{name}")));
    assert_eq!(files_below(unpacked.path()), expected);
    let program = unpacked.path().join("usr/bin/limitctl");
    run_command(command(program).arg("--version")).ended(0);

    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let host = directory();
    fs::create_dir_all(host.path().join("var/lib/dpkg/info")).expect("created");
    fs::create_dir(host.path().join("var/lib/dpkg/updates")).expect("created");
    fs::write(host.path().join("var/lib/dpkg/status"), "").expect("written");
    let dpkg = |arguments: &[&str]| {
        let root = format!("--root={}", text(host.path()));
        // The host has nothing else, and no shell.
        let mut dpkg = command("dpkg");
        dpkg.args([&*root, "--force-depends", "--force-script-chrootless"]);
        run_command(dpkg.args(arguments)).ended(0);
    };
    dpkg(&["--install", text(package)]);
    assert!(host.path().join("usr/bin/limitctl").exists());
    assert!(host.path().join("etc/shmlimit").is_dir());
    if has("systemd-tmpfiles", &["--version"]) {
        assert!(host.path().join("run/shmlimit").is_dir());
    }
    dpkg(&["--purge", "limitctl"]);
    assert!(!host.path().join("usr/bin").exists());
}

#[test]
fn units_are_what_systemd_takes_them_for() {
    if !has("systemd-analyze", &["--version"]) {
        return;
    }
    let root = directory();
    install(root.path());
    // The unit names the program's path on a host, which is different here.
    for unit in [
        "shmlimit.service",
        "shmlimit-doctor.service",
        "shmlimit-doctor.timer",
    ] {
        let path = root.path().join("usr/lib/systemd/system").join(unit);
        let here = fs::read_to_string(&path).expect("installed");
        let here = here.replace("/usr/bin/limitctl", text(&root.path().join("usr/bin/limitctl")));
        fs::write(&path, here).expect("written");
        let verified = run_command(command("systemd-analyze").args(["verify", "--man=no", text(&path)]));
        // It also examines the units that these need, and this host's may be strange.
        let complaints = verified.stderr.lines().filter(|line| line.contains("shmlimit"));
        assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&str>::new(), "{unit}");
    }
}

#[test]
fn the_directory_is_made_and_the_service_fills_it_and_finds_nothing_wrong() {
    let root = directory();
    install(root.path());
    let segments = root.path().join("run/shmlimit");
    let is_root = nix::unistd::geteuid().is_root();
    if is_root && has("systemd-sysusers", &["--version"]) && has("systemd-tmpfiles", &["--version"]) {
        let below = format!("--root={}", text(root.path()));
        run_command(command("systemd-sysusers").args([&below, "shmlimit.conf"])).ended(0);
        run_command(command("systemd-tmpfiles").args(["--create", &below, "shmlimit.conf"])).ended(0);
        let groups = fs::read_to_string(root.path().join("etc/group")).expect("made");
        let limits = groups
            .lines()
            .find(|line| line.starts_with("limits:"))
            .expect("the group");
        let metadata = fs::metadata(&segments).expect("made");
        let group = limits
            .split(':')
            .nth(2)
            .expect("a number")
            .parse::<u32>()
            .expect("a number");
        assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (0o2750, group));
        assert!(root.path().join("var/lib/shmlimit").is_dir());
    } else {
        println!("skipped: the directory is not made as systemd makes it");
        fs::create_dir_all(&segments).expect("made");
    }
    for file in fs::read_dir(packaging().join("declarations")).expect("declarations") {
        let file = file.expect("an entry").path();
        let name = file.file_name().expect("a name");
        fs::copy(&file, root.path().join("etc/shmlimit").join(name)).expect("copied");
    }
    let of_unit = |unit: &str, field: &str| {
        let text_of_unit = fs::read_to_string(packaging().join("systemd").join(unit)).expect("a unit");
        let line = text_of_unit
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix('='));
        let line = line.unwrap_or_else(|| panic!("no {field} in {unit}"));
        let below = |path: &str| format!(" {}{path}", text(root.path()));
        let line = ["/etc/shmlimit", "/run/shmlimit"]
            .iter()
            .fold(format!(" {line}"), |line, path| {
                line.replace(&format!(" {path}"), &below(path))
            });
        run_command(command("sh").args([
            "-c",
            &line.replace(" /usr/bin/limitctl", &below("/usr/bin/limitctl")),
        ]))
    };
    let created = of_unit("shmlimit.service", "ExecStart").ended(0);
    let segment = segments.join("api.limits");
    assert!(
        created.stdout.contains(&format!("created {}", text(&segment))),
        "{created:?}"
    );
    assert_eq!(fs::metadata(&segment).expect("created").mode() & 0o777, 0o660);
    // A segment gets the group of the directory.
    let of_directory = fs::metadata(&segments).expect("made").gid();
    assert_eq!(fs::metadata(&segment).expect("created").gid(), of_directory);
    // No declaration in the directory has a checkpoint.
    assert_eq!(of_unit("shmlimit.service", "ExecStop").ended(0).stdout, "");
    let reloaded = of_unit("shmlimit.service", "ExecReload").ended(0);
    assert!(reloaded.stdout.contains("found "), "{reloaded:?}");
    of_unit("shmlimit-doctor.service", "ExecStart").ended(0);
}

#[test]
fn examples_for_kubernetes_are_read_by_its_tools() {
    if !has("kubectl", &["version", "--client"]) {
        return;
    }
    let built =
        run_command(command("kubectl").args(["kustomize", text(&packaging().join("kubernetes"))])).ended(0);
    for part in [
        "kind: ConfigMap",
        "kind: Pod",
        "kind: DaemonSet",
        "medium: Memory",
    ] {
        assert!(built.stdout.contains(part), "{part} in {}", built.stdout);
    }
    // The declaration in the ConfigMap is valid.
    let (_, declared) = built.stdout.split_once("api.toml: |\n").expect("a declaration");
    let lines = declared
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    let declaration: Vec<&str> = lines.map(|line| line.get(4..).unwrap_or_default()).collect();
    let declared = Declaration::from_toml(&declaration.join("\n")).expect("a declaration");
    assert!(declared.to_toml().expect("text").contains("in_flight"));
}

#[test]
fn the_example_for_compose_is_read_by_its_tools() {
    let file = packaging().join("compose/compose.yaml");
    if has("python3", &["--version"]) {
        let script = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
        let application = packaging().join("compose/app.py");
        run_command(command("python3").args(["-c", script, text(&application)])).ended(0);
    }
    if has("docker", &["compose", "version"]) {
        run_command(command("docker").args(["compose", "--file", text(&file), "config", "--quiet"])).ended(0);
    } else if has("python3", &["-c", "import yaml"]) {
        // Checks that this is YAML whose services have the shared parts.
        let script = "import sys, yaml; read = yaml.safe_load(open(sys.argv[1])); \
                      print(*(it['volumes'][0] for it in read['services'].values()), *read['volumes'])";
        let read = run_command(command("python3").args(["-c", script, text(&file)])).ended(0);
        assert_eq!(
            read.stdout,
            "memory:/dev/shm memory:/dev/shm memory:/dev/shm memory\n"
        );
    }
}
