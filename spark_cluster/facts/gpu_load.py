"""Thresholds by which a GPU under load is judged."""

BUSY_PERCENT = 50
"""Utilisation from which a GPU is under load."""

LOW_MHZ = 1000
"""SM clock under load below which something is wrong: a GPU with too little power does 500 to 850,
a healthy one about 2400. Sources: muninn-gemma4-26b, public-reports."""

LOW_W = 30
"""Power under load up to which the supply is at fault, not a limit. Sources: as for LOW_MHZ."""

SLOW_MHZ = 1500
"""SM clock under load below which a benchmark's figures are not to be trusted: between the faulty
GPUs and the 2100 MHz to which clocks are capped against sudden power-offs. Sources: as for
LOW_MHZ."""
