# docker build -t fedagentgym . && docker run fedagentgym
FROM python:3.12
WORKDIR /fedagentgym
COPY . .
RUN make .venv/.train
ENV PATH=/fedagentgym/.venv/bin:$PATH
CMD ["make", "demo"]
