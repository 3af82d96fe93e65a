# One image for every service of docker-compose.yaml: Airflow, Spark Connect and the S3 server.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/sluice
COPY requirements.txt overrides.txt pyproject.toml README.md requirements.in ./
RUN pip install --no-cache-dir uv && uv pip install --system --compile-bytecode --override overrides.txt -r requirements.txt
COPY include include
RUN uv pip install --system --no-deps .
COPY dags dags
COPY plugins plugins
COPY spark_jobs spark_jobs
ENV PYTHONPATH=/opt/sluice/include
