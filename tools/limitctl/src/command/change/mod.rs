//! Verbs that change declarations or counts, one per file.

mod apply;
mod assign;
mod edit;
mod reset;
mod throttle;

verbs![
    apply::Apply,
    edit::Edit,
    assign::Assign,
    reset::Reset,
    throttle::Throttle
];
