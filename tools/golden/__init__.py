"""Golden traces: what twenty steps of every kind of run leave behind, bit for bit, before and after a change."""
