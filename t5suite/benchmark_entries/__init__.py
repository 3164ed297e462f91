"""Registry entries of further benchmarks, a module each: plain data, which `t5suite.constants` puts together."""
