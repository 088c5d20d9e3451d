//! The clock that processes read.

use crate::words::words;

/// The clock that a process reads: the `clock` of a `[segment]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClockSource {
    /// The processor's counter, which each thread aligns with the system's clock every five milliseconds. A reading
    /// takes a third of the time. It is never ahead of the system's clock, so no window of the wall clock opens
    /// early, and at most 10 µs behind: the time between two readings may be off by that much. Every `retry_after`
    /// includes this margin, so a caller that waits that long is admitted. After the machine was suspended, time may
    /// stand still for up to 5 ms before it catches up. If the kernel does not keep its own time by the counter, or a
    /// process may not read it, this is the same as [`System`](Self::System).
    ///
    /// Not covered: a virtual machine that moves to a host with a different counter, which each thread notices 5 ms
    /// after its first readings there; and a clock that the kernel slews by more than 500 millionths to correct a
    /// wrong time, during which a reading may be ahead by up to 0.5 ms. A counter that stops for good stops the
    /// kernel's own clock as well. Whether the kernel keeps its time by the counter is checked once per process.
    #[default]
    Counter,
    /// The system's clock.
    System,
}

words!(ClockSource, "a source of time", {
    Counter = "counter",
    System = "system",
});
