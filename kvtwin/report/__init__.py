"""HTML reports: one file, offline, with its charts and the tables behind them."""

from kvtwin.report.report import write_report, write_run_report

__all__ = ["write_report", "write_run_report"]
