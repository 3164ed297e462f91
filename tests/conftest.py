"""Imported first: `t5suite` sets how OpenMP's threads wait, which works only before torch is loaded."""

import t5suite

assert t5suite
