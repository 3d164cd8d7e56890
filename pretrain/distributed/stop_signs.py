"""How a run is asked to stop and says what ended it; without torch, for those who only ask."""

import signal

EXIT_CODE = 85  # "saved, start me again": positive, so that launchers pass it on
NOT_MET_CODE = 75  # "the ranks did not find each other": EX_TEMPFAIL, a new start may be luckier
STOP_FILE = "STOP"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
