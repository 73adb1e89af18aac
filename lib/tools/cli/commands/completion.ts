// `policy-loss completion`: prints a script that completes commands, flags and names in a shell. It is made from the
// same commands and flags as the help.
import { Argument, type Command, type Option } from 'commander';
import { ALGORITHM_TYPE, KeyMapper, LOSS_FN } from '../../../index.js';
import { catalogue, KINDS } from '../catalogue.js';
import { helpAfter } from '../help.js';
import { writeResult } from '../streams.js';

const SHELLS = { bash, zsh, fish } as const;

/** Adds the command `completion` to the command-line program. It must be the last one, because it describes the others. */
export function addCompletion(program: Command): void {
  program
    .command('completion')
    .summary('print a script for completion in a shell')
    .description(
      'Prints a script that completes commands, flags, and the names of losses and algorithms. Flags of single losses are ' +
        'not completed.',
    )
    .addArgument(new Argument('<shell>', 'the shell').choices(Object.keys(SHELLS)))
    .addHelpText('after', helpAfter(['completion bash', 'completion fish'], HELP))
    .action((shell: keyof typeof SHELLS) => writeResult(SHELLS[shell](tableOf(program))));
}

const HELP = `\
Bash: add eval "$(policy-loss completion bash)" to ~/.bashrc. Zsh: the same with zsh, after compinit, in ~/.zshrc.
Fish: policy-loss completion fish > ~/.config/fish/completions/policy-loss.fish`;

interface Completed {
  name: string;
  summary: string;
  flags: readonly { flag: string; help: string; takesValue: boolean; values: readonly string[] }[];
  /** The values of the command's first argument; empty if it is a file. */
  values: readonly string[];
}

function tableOf(program: Command): Completed[] {
  return program.commands.map((command) => ({
    name: command.name(),
    summary: command.summary(),
    flags: command.options
      .filter(({ long, hidden }) => long !== undefined && !hidden)
      .map((option) => ({
        flag: option.long!,
        help: option.description,
        takesValue: option.required,
        values: valuesOf(option),
      })),
    values: command.name() === 'list' ? namesOfList() : (command.registeredArguments[0]?.argChoices ?? []),
  }));
}

function namesOfList(): string[] {
  return [...new Set([...KINDS, ...catalogue().map(({ name }) => name)])];
}

function valuesOf({ long, argChoices }: Option): readonly string[] {
  switch (long) {
    case '--loss':
      return LOSS_FN.names();
    case '--algorithm':
      return ALGORITHM_TYPE.names();
    case '--backend':
      return KeyMapper.names();
    default:
      return argChoices ?? [];
  }
}

/** Returns the branches of a `case` by the flag before the word, one for each flag that has a list of values. */
function branchesByFlag(table: readonly Completed[], act: (values: readonly string[]) => string): string[] {
  const values = new Map(
    table.flatMap(({ flags }) => flags.map((each) => [each.flag, each.values] as const)),
  );
  return [...values].filter(([, list]) => list.length > 0).map(([flag, list]) => `${flag}) ${act(list)} ;;`);
}

function flagsOf({ flags }: Completed): string[] {
  return [...flags.map(({ flag }) => flag), '--help'];
}

function bash(table: readonly Completed[]): string {
  const words = (list: readonly string[]) => `words='${list.join(' ')}'`;
  const byCommand = table.map((each) => `${each.name}) ${words([...flagsOf(each), ...each.values])} ;;`);
  return `\
_policy_loss() {
  local cur=\${COMP_WORDS[COMP_CWORD]} words=
  if ((COMP_CWORD == 1)); then
    ${words(table.map(({ name }) => name))}
  else
    case \${COMP_WORDS[COMP_CWORD - 1]} in
      ${branchesByFlag(table, words).join('\n      ')}
      *)
        case \${COMP_WORDS[1]} in
          ${byCommand.join('\n          ')}
        esac ;;
    esac
  fi
  COMPREPLY=()
  # Without a match, bash completes the names of files.
  if [[ -n $cur || $words != --* ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur"); fi
}
complete -o default -F _policy_loss policy-loss
`;
}

function zsh(table: readonly Completed[]): string {
  const add = (list: readonly string[]) => `compadd -- ${list.join(' ')}`;
  const commands = table.map(({ name, summary }) => quoted(`${name}:${summary.replaceAll(':', '\\:')}`));
  const byCommand = table.map((each) => `${each.name}) ${add(flagsOf(each))} ;;`);
  const withValues = table.filter(({ values }) => values.length > 0);
  return `\
_policy_loss() {
  local -a commands=(${commands.join(' ')})
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  case \${words[CURRENT - 1]} in
    ${branchesByFlag(table, (values) => `${add(values)}; return`).join('\n    ')}
  esac
  if [[ \${words[CURRENT]} == -* ]]; then
    case \${words[2]} in
      ${byCommand.join('\n      ')}
    esac
  else
    case \${words[2]} in
      ${withValues.map(({ name, values }) => `${name}) ${add(values)} ;;`).join('\n      ')}
      *) _files ;;
    esac
  fi
}
compdef _policy_loss policy-loss
`;
}

function fish(table: readonly Completed[]): string {
  const line = (...words: readonly string[]) => ['complete -c policy-loss', ...words].join(' ');
  const lines = table.flatMap(({ name, summary, flags, values }) => {
    const of = `-n ${quoted(`__fish_seen_subcommand_from ${name}`)}`;
    return [
      line('-n __fish_use_subcommand -f', `-a ${name}`, `-d ${quoted(summary)}`),
      ...(values.length > 0 ? [line(of, '-f', `-a ${quoted(values.join(' '))}`)] : []),
      ...flags.map((each) =>
        line(
          of,
          `-l ${each.flag.slice(2)}`,
          ...(each.takesValue ? ['-r'] : []),
          ...(each.values.length > 0 ? [`-f -a ${quoted(each.values.join(' '))}`] : []),
          `-d ${quoted(each.help.split(/[:;,(]/, 1)[0]!)}`,
        ),
      ),
    ];
  });
  return `${lines.join('\n')}\n`;
}

/** Returns a text in single quotes, as all three shells read it. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
