# One image for every role: `serve` (HOLDFAST_ROLE=api|worker|all), `migrate`, and every other word of the command line.

FROM python:3.11-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
# The environment has no pip of its own: what installs it stays behind in this stage.
RUN python -m venv --without-pip /opt/holdfast \
    && python -m pip --python /opt/holdfast/bin/python install --no-cache-dir '.[postgres,server,tracing]'

FROM python:3.11-slim
# Nothing is installed into a container that runs, so nothing is left that could.
RUN python -m pip uninstall --yes --root-user-action=ignore setuptools wheel pip \
    && install -d -o 10001 -g 10001 /app /data
COPY --from=build /opt/holdfast /opt/holdfast
# A place for SQLite where there is no server. Everything else may be mounted read-only.
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOLDFAST_DATABASE_URL=/data/holdfast.db
WORKDIR /app
USER 10001:10001
EXPOSE 8787
# The process answers. Whether it should get requests is `/readyz`, and the balancer's question.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8787, timeout=2); c.request('GET', '/livez'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["holdfast"]
CMD ["serve"]
