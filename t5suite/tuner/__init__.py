"""What stands behind `t5suite.FineTuner`: its inputs, the script's steps over them, its answers, and the process around."""
