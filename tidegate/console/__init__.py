"""The console: one page in the browser that shows what a pipeline does while it does it.

`shown` says what can be shown; `running` shows a session of this process, `stored` a data directory
that another process may be using. `watch` looks once per second, `app` answers requests, `guard`
turns away those that it must not answer. It may import everything but the command line.
"""
