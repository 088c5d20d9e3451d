//! What the time is read from.

use crate::words::words;

/// What a process reads the time from: the `clock` of a `[segment]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClockSource {
    /// From the processor's counter, which each thread sets by the system's clock every five milliseconds: a reading takes a
    /// third of the time. It is never ahead of the system's clock, so that no window of the wall clock opens early, and behind
    /// by at most 10 µs: between two readings there may be so much more or less. Every `retry_after` is longer by that, so that
    /// a caller which waits for as long is admitted. After the machine was suspended, time may stand still for up to 5 ms
    /// before it follows. Where the kernel does not keep its own time by the counter, or a process may not read it, this is
    /// [`System`](Self::System).
    ///
    /// Not covered: a virtual machine that is moved to a host whose counter is another, of which each thread learns 5 ms after its
    /// first readings there; and a clock that the kernel adjusts by more than 500 millionths to make up for a wrong time, during
    /// which a reading may be ahead by up to 0.5 ms. A counter that stops for good stops the kernel's own clock as well. Whether
    /// the kernel keeps its time by the counter is asked once in a process.
    #[default]
    Counter,
    /// From the system's clock.
    System,
}

words!(ClockSource, "a source of time", {
    Counter = "counter",
    System = "system",
});
