"""A client that loses its connection in the middle of an answer, and goes on where it was. Needs a running server.

make run                       in one terminal
python examples/tunnel.py      in another (needs the openai client)
"""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8700/v1", api_key="none")

stream = client.responses.create(
    model="clerk",
    input="I need black running shoes, size 10",
    background=True,
    stream=True,
    extra_body={"metadata": {"pace_ms": "20"}},  # the clerk speaks slowly
)
seen, words, ended = -1, [], False
while not ended:
    for event in stream:
        seen = event.sequence_number
        if event.type == "response.created":
            response = event.response.id
        elif event.type == "response.output_text.delta":
            words.append(event.delta)
        ended = event.type == "response.completed"
        if seen % 10 == 9:
            print(f"  … a tunnel after event {seen} …")
            stream.close()
            break
    if not ended:
        stream = client.responses.retrieve(response, stream=True, starting_after=seen)
print("".join(words))
