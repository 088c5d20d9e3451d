//! Verbs about a segment as a file, one per file.

mod checkpoint;
mod create;
mod declared;
mod list;
mod recover;
mod remove;

verbs![
    create::Create,
    list::List,
    recover::Recover,
    checkpoint::Checkpoint,
    remove::Remove,
];
