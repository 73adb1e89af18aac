/** Environment variables to set; those that are undefined are unset. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** Changes this process's environment. Returns a function that restores the changed variables. */
export function setEnvironment(changes: Environment): () => void {
  const before = Object.fromEntries(Object.keys(changes).map((name) => [name, process.env[name]]));
  set(changes);
  return () => set(before);
}

function set(variables: Environment): void {
  for (const [name, value] of Object.entries(variables))
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
}
