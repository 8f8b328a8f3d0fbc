# The gateway: no torch, no model files. Also runs `forebay migrate`, `ledger`, `tenant`, `key` and `usage`.
FROM python:3.13-slim

RUN useradd --system --uid 10001 forebay
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY gateway gateway
COPY worker worker
COPY kernels kernels
COPY migrations migrations
COPY cli cli
COPY bench bench
RUN pip install --no-cache-dir --constraint constraints.txt ".[gateway,telemetry]"

USER forebay
EXPOSE 8080 9100
CMD ["forebay", "gateway"]
