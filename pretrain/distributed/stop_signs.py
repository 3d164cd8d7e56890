"""How a run is asked to stop and how it says that it did; without torch, for those who only ask."""

import signal

EXIT_CODE = 85  # "saved, start me again": positive, so that launchers pass it on
STOP_FILE = "STOP"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
