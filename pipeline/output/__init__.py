"""What lies in an output folder, and which run may write there.

`commits` and `manifest` record what is done, `run_log` what each run did. `find` compares that with the input and says
what is left; `finish` ends a run, `balance` and `integrity` check that nothing is missing; `lock` admits one writer.
"""
