"""The types of what limits answer, for annotations and `isinstance`. Programs get these objects from a set's methods.

A `Permit` is what an admitted request holds, a `Refusal` why one was refused. `Checked` is the answer to `check` and
`debit`, `Reservation` to `reserve`, and `Acquisition` is what `acquire_async` returns, to be awaited. A `Verdict` is
what one limit said, a `Forecast` how much it has and when it has more, and a `Settlement` what settling changed.

They compare by their attributes, and pickle as them. `Permit`, `Reservation` and `Acquisition` do neither: they hold
something, and stay in their process.
"""

from shmlimit._acquisition import Acquisition
from shmlimit._native import Checked, Forecast, Permit, Refusal, Reservation, Settlement, Verdict

__all__ = ["Acquisition", "Checked", "Forecast", "Permit", "Refusal", "Reservation", "Settlement", "Verdict"]
