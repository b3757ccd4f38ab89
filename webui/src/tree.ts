// A conversation as a tree: every message knows what it answers. What was regenerated or edited stays beside what
// took its place, as another version of it, and two copies of a conversation are put together message by message.
import type { Conversation, Message } from "./types";

/** From the first message to the one that the conversation stands at. */
export function thread(conversation: Conversation): Message[] {
  const known = new Map(conversation.messages.map((message) => [message.id, message]));
  const path: Message[] = [];
  for (let at = conversation.leaf; at !== null; ) {
    const message = known.get(at);
    if (!message) break;
    known.delete(at); // whatever an imported file says, there is an end
    path.push(message);
    at = message.parent;
  }
  return path.reverse();
}

/** The versions of a message, itself among them, in the order in which they came. */
export function versions(conversation: Conversation, message: Message): Message[] {
  return conversation.messages.filter((one) => one.parent === message.parent && one.role === message.role);
}

/** The end of the conversation as it went on from a message: by the latest version each time. */
export function endFrom(conversation: Conversation, id: string): string {
  const seen = new Set<string>();
  for (let at = id; ; ) {
    seen.add(at);
    const next = conversation.messages.findLast((message) => message.parent === at && !seen.has(message.id));
    if (!next) return at;
    at = next.id;
  }
}

/** Both copies' messages; of the same message, and of all else, the one that was changed last. Where `ours` stands
 *  stays, unless the other copy goes on from there. */
export function merged(ours: Conversation, theirs: Conversation): Conversation {
  const newer = theirs.changed > ours.changed ? theirs : ours;
  const others = new Map(theirs.messages.map((message) => [message.id, message]));
  const messages = ours.messages.map((message) => {
    const other = others.get(message.id);
    others.delete(message.id);
    return other && other.changed > message.changed ? other : message;
  });
  // By time, so that both copies come to the same order of versions.
  const all = [...messages, ...others.values()].sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
  const one = { ...newer, updated: Math.max(ours.updated, theirs.updated), messages: all, leaf: ours.leaf };
  const goesOn = thread({ ...one, leaf: theirs.leaf }).some((message) => message.id === ours.leaf);
  return goesOn || ours.leaf === null ? { ...one, leaf: theirs.leaf } : one;
}

/** A conversation as earlier versions of this page kept it, a list, as a tree. */
export function upgraded(kept: Conversation): Conversation {
  if (kept.leaf !== undefined && kept.messages.every((message) => message.parent !== undefined)) return kept;
  let parent: string | null = null;
  const messages = kept.messages.map((message, index) => {
    const one: Message = { ...message, parent, created: kept.created + index, changed: kept.created + index };
    parent = one.id;
    return one;
  });
  return { ...kept, changed: kept.updated, messages, leaf: parent };
}
