"""The command ``ringleader``: measuring, proving, drawing and explaining collectives. Needs the extra ``cli``."""
