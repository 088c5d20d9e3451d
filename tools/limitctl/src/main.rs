//! The program.

fn main() -> std::process::ExitCode {
    limitctl::run(std::env::args_os()).into()
}
