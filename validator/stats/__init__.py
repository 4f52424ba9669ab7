"""Statistics of series: windows, means and their intervals, step times against clocks."""
