//! Requests that wait their turn.
