"""What stands behind `t5suite.FineTuner`: inputs, the script's steps, answers, and the process around them."""
