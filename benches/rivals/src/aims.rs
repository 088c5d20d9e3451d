//! The aims next to what was measured: whether each was met or, if not, by how much it was missed.

use std::path::Path;
use std::process::Command;

/// Prints the table.
pub fn print(aims: &[Aim]) {
    println!("| what | aim | measured | |\n|---|---:|---:|---|");
    for aim in aims {
        println!("{}", aim.row());
    }
}

/// One row.
pub struct Aim {
    what: &'static str,
    bound: Bound,
    unit: &'static str,
    /// The figure, or why it was not measured.
    measured: Result<f64, &'static str>,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    /// The figure should be no more than `aim`.
    pub fn at_most(what: &'static str, aim: f64, unit: &'static str, measured: f64) -> Self {
        Self {
            what,
            bound: Bound::AtMost(aim),
            unit,
            measured: Ok(measured),
        }
    }

    /// The figure should be no less than `aim`.
    pub fn at_least(what: &'static str, aim: f64, unit: &'static str, measured: f64) -> Self {
        Self {
            bound: Bound::AtLeast(aim),
            ..Self::at_most(what, aim, unit, measured)
        }
    }

    fn row(&self) -> String {
        let Self {
            what, bound, unit, ..
        } = self;
        let aim = match bound {
            Bound::AtMost(aim) => format!("{aim}{unit} or less"),
            Bound::AtLeast(aim) => format!("{aim}{unit} or more"),
        };
        let measured = match self.measured {
            Ok(measured) => measured,
            Err(why) => return format!("| {what} | {aim} | not measured | {why} |"),
        };
        let (is_met, distance) = match *bound {
            Bound::AtMost(aim) => (measured <= aim, measured / aim),
            Bound::AtLeast(aim) => (measured >= aim, aim / measured),
        };
        let verdict = if is_met {
            "met".to_owned()
        } else {
            format!("missed by {:.0} %", (distance - 1.0) * 100.0)
        };
        let digits = if measured < 10.0 { 2 } else { 0 };
        format!("| {what} | {aim} | {measured:.digits$}{unit} | {verdict} |")
    }
}

/// User instructions of an operation, as kept for this version of the compiler.
pub fn of_instructions() -> Vec<Aim> {
    let kept = kept_instructions();
    [
        ("check, instructions", 300.0, "1 limit (GCRA calls): check"),
        (
            "1 limit, instructions",
            350.0,
            "1 limit (GCRA calls): try_acquire, drop",
        ),
        (
            "3 limits, instructions",
            600.0,
            "3 limits (GCRA calls): try_acquire, drop",
        ),
        (
            "concurrency, instructions",
            700.0,
            "1 concurrency limit: try_acquire, drop",
        ),
        ("check of a key, instructions", 500.0, "1 key (GCRA calls): check"),
        ("refused, instructions", 300.0, "refused by rate"),
    ]
    .into_iter()
    .map(|(what, aim, operation)| Aim {
        what,
        bound: Bound::AtMost(aim),
        unit: "",
        measured: kept
            .as_deref()
            .and_then(|kept| count_of(kept, operation))
            .ok_or("`cargo bench --package instructions -- --keep` was not run with this compiler"),
    })
    .collect()
}

fn kept_instructions() -> Option<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = format!("rustc-{}-{}.txt", text.split(' ').nth(1)?, std::env::consts::ARCH);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../instructions");
    std::fs::read_to_string(directory.join(name)).ok()
}

fn count_of(kept: &str, operation: &str) -> Option<f64> {
    kept.lines()
        .filter_map(|line| line.trim_start().split_once(' '))
        .find(|(_, name)| *name == operation)
        .and_then(|(count, _)| count.parse().ok())
}

/// Calls from Python, measured by running `python/benches/calls.py` with the interpreter.
pub fn of_python(interpreter: Option<&Path>) -> Vec<Aim> {
    let table = interpreter.and_then(measured_by);
    let cell = |statement: &str, column: usize| {
        let table = match (&table, interpreter) {
            (Some(table), _) => table,
            (None, Some(_)) => return Err("python/benches/calls.py failed with that interpreter"),
            (None, None) => return Err("no `--python INTERPRETER`, which has shmlimit and limits"),
        };
        let row = table
            .lines()
            .find(|line| line.contains(&format!("`{statement}`")));
        let cell = row.and_then(|row| row.split('|').nth(column));
        let number = cell.and_then(|cell| cell.trim().replace(',', "").parse().ok());
        number.ok_or("the package limits is not installed there")
    };
    let (admitted, refused) = ("one.try_acquire().release()", "refused.check()");
    let aim = |what, bound, unit, measured| Aim {
        what,
        bound,
        unit,
        measured,
    };
    vec![
        aim(
            "Python: acquire and release",
            Bound::AtMost(200.0),
            " ns",
            cell(admitted, 2),
        ),
        aim("Python: refused", Bound::AtMost(120.0), " ns", cell(refused, 2)),
        aim(
            "Python: acquire and release beside `limits` in memory",
            Bound::AtLeast(12.0),
            "x",
            cell(admitted, 4),
        ),
        aim(
            "Python: refused beside `limits` in memory",
            Bound::AtLeast(12.0),
            "x",
            cell(refused, 4),
        ),
    ]
}

/// The table that the bench prints.
fn measured_by(interpreter: &Path) -> Option<String> {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/benches/calls.py");
    let output = Command::new(interpreter).arg(bench).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("\n## Calls from Python\n\n{text}");
    output.status.success().then_some(text)
}
