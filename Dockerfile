# syntax=docker/dockerfile:1
FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN python -m venv /opt/gslb && /opt/gslb/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY gslb ./gslb
COPY config/scenarios ./config/scenarios
RUN /opt/gslb/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home gslb
COPY --from=build /opt/gslb /opt/gslb
COPY config/minimal.yaml /etc/gslb/gslb.yaml
ENV PATH=/opt/gslb/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=2s --start-period=5s CMD \
  ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9090/healthz', timeout=1.5)"]
ENTRYPOINT ["gslb"]
CMD ["serve", "-c", "/etc/gslb/gslb.yaml"]
