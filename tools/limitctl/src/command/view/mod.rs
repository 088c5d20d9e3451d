//! Verbs that only look, one per file.

mod doctor;
mod export;
mod file_output;
mod inspect;
mod keys;
mod serve;
mod show;
mod top;
mod watch;

verbs![
    inspect::Inspect,
    keys::Keys,
    show::Show,
    doctor::Doctor,
    top::Top,
    watch::Watch,
    export::Export,
    serve::Serve,
];
