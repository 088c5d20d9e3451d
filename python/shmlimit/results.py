"""The types of the limits' answers, for annotations and `isinstance`. Programs get the objects from a set's methods.

A `Permit` is what an admitted request holds, and a `Refusal` says why a request was refused. `Checked` is the answer to
`check` and `debit`, `Reservation` to `reserve`, and `Acquisition` is what `acquire_async` returns, to be awaited. A
`Verdict` is what one limit said, a `Forecast` says how much of it there is and when there will be more, and a
`Settlement` says what settling changed.

These objects compare by their attributes, and pickle with them. `Permit`, `Reservation` and `Acquisition` do neither:
they hold something, and stay in their process.
"""

from shmlimit._acquisition import Acquisition
from shmlimit._native import Checked, Forecast, Permit, Refusal, Reservation, Settlement, Verdict

__all__ = ["Acquisition", "Checked", "Forecast", "Permit", "Refusal", "Reservation", "Settlement", "Verdict"]
