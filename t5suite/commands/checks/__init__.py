"""The checks of `t5suite doctor`, by what they look at; each is a function of a `Checkup`."""
