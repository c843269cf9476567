"""Programs that use one queue together: with this package, and with the published ones.

Each takes the path of the server's socket, the prefix of the queue, a role, and a name:

- add N: adds N items with the ids `<name>-0`, `<name>-1` ...
- work: takes items until it is killed. It notes what it holds in the hash `<prefix>-holding`, the
  ids that it worked on in the set `<prefix>-done`, and the completions that were true in the hash
  `<prefix>-completed`
- hold: takes one item, prints its id, and never ends
- clean: cleans until it is killed
- show: takes one item, prints it as JSON, and completes it
"""
