//! Holders and waiters, as every list shows them.

use std::collections::BTreeMap;
use std::time::Duration;

use shmlimit::snapshot::{HoldSnapshot, KeyInOrder, KeyLabel, ProcessId, TicketSnapshot};

use super::table::{Cell, Table};
use super::{human, key, process, sanitise, style};

/// A hold or a ticket.
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    pub number: u64,
    pub slot: Option<u64>,
    pub process: Option<ProcessId>,
    pub state: UserState,
    /// How long it has been held or has waited in the queue.
    pub age: Duration,
    pub amounts: &'a BTreeMap<String, u64>,
    pub key: Option<&'a KeyLabel>,
    pub in_order: Option<KeyInOrder>,
    pub label: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserState {
    Holds,
    Returned,
    Waits,
    Served,
    /// The process is alive, but does not run until another process lets it.
    Stopped,
    Dead,
}

impl UserState {
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Returned => "returned",
            Self::Waits => "waits",
            Self::Served => "was served",
            Self::Stopped => "stopped",
            Self::Dead => "dead",
        }
    }
}

impl<'a> From<&'a HoldSnapshot> for User<'a> {
    fn from(hold: &'a HoldSnapshot) -> Self {
        Self {
            number: hold.serial,
            slot: hold.owner_slot,
            process: process::of_hold(hold),
            state: match (hold.owner_alive, hold.returned) {
                (_, true) => UserState::Returned,
                (true, false) => UserState::Holds,
                (false, false) => UserState::Dead,
            },
            age: hold.held_for,
            amounts: &hold.amounts,
            key: hold.key.as_ref(),
            in_order: None,
            label: hold.label.as_deref(),
        }
    }
}

impl<'a> From<&'a TicketSnapshot> for User<'a> {
    fn from(ticket: &'a TicketSnapshot) -> Self {
        Self {
            number: ticket.number,
            slot: ticket.owner_slot,
            process: process::of_ticket(ticket),
            state: match (ticket.owner_alive, ticket.granted) {
                (false, _) => UserState::Dead,
                (true, true) => UserState::Served,
                (true, false) => UserState::Waits,
            },
            age: ticket.waiting_for,
            amounts: &ticket.costs,
            key: ticket.key.as_ref(),
            in_order: ticket.in_order,
            label: None,
        }
    }
}

impl User<'_> {
    /// The same user, whose process is stopped.
    pub fn stopped(self) -> Self {
        let state = match self.state {
            UserState::Holds | UserState::Waits | UserState::Served => UserState::Stopped,
            done => done,
        };
        Self { state, ..self }
    }

    /// The label of the user's request on one line. Empty if there is none.
    pub fn label_text(&self) -> String {
        self.label.map(sanitise::line).unwrap_or_default()
    }
}

/// A table of users, with these headings for the columns of numbers, ages and amounts. Without numbers if the first
/// heading is empty.
pub fn table(
    users: &[User<'_>],
    [number, age, amounts]: [&str; 3],
    name: impl Fn(&User<'_>) -> String,
    amount: impl Fn(&BTreeMap<String, u64>) -> String,
) -> String {
    let mut table = Table::of(users);
    if !number.is_empty() {
        table = table.right(number, |user| user.number);
    }
    table
        .right("PID", |user| process::cell(user.process))
        .left_if_any("NAME", name)
        .left("STATE", |user| {
            let style = match user.state {
                UserState::Dead => style::BAD,
                UserState::Stopped => style::WARNING,
                _ => style::GOOD,
            };
            Cell::styled(user.state.words(), style)
        })
        .right(age, |user| human::duration(user.age))
        .left(amounts, |user| amount(user.amounts))
        .left_if_any("KEY", |user| key::of(user.key))
        .left_if_any("SHARE", |user| key::share(user.in_order))
        .left_if_any("LEAD", |user| key::lead(user.in_order))
        .left_if_any("LABEL", User::label_text)
        .render(2)
}
