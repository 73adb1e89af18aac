// The folder of a run: its plan and its parts. The submitter and all workers see it, under whatever path.
import { randomUUID } from 'node:crypto';
import { rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LossError } from '../../index.js';
import { type Plan, type PlannedConfiguration, readPlan, writePlan } from '../parts/index.js';
import { isRun, runOf } from './jobs.js';

/** Returns the path of a run's folder. */
export function runFolder(parts: string, run: string): string {
  return join(parts, run);
}

/** Returns the path of a run's plan. */
export function planFile(parts: string, run: string): string {
  return join(runFolder(parts, run), 'plan.json');
}

/** Writes a plan into the folder of its run. */
export async function storePlan(parts: string, plan: Plan): Promise<void> {
  await writePlan(planFile(parts, runOf(plan)), plan);
}

/**
 * Checks the name of a run.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function checkRun(run: string): void {
  if (!isRun(run))
    throw new LossError('ERR_INVALID_INPUT', {
      at: run,
      expected: 'the name of a run, which is 16 hexadecimal digits',
      received: 'another text',
    });
}

/** Returns whether the folder of a run has its plan, until somebody removes the run. */
export async function hasPlan(parts: string, run: string): Promise<boolean> {
  return stat(planFile(parts, run)).then(
    () => true,
    () => false,
  );
}

/** The error about a run without a plan. */
export function removedError(parts: string, run: string): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    at: `run ${run}`,
    expected: 'a run that nobody has cancelled or removed',
    received: `no file ${planFile(parts, run)}`,
  });
}

/**
 * Reads the plan of a run.
 * @param program the version of this package.
 * @throws LossError `ERR_INVALID_INPUT` if the plan is missing or invalid.
 */
export async function storedPlan(parts: string, run: string, program: string): Promise<Plan> {
  checkRun(run);
  if (!(await hasPlan(parts, run))) throw removedError(parts, run);
  const file = planFile(parts, run);
  const plan = await readPlan(file, program);
  if (runOf(plan) !== run)
    throw new LossError('ERR_INVALID_INPUT', {
      at: file,
      expected: `the plan ${run}…`,
      received: `the plan ${runOf(plan)}…`,
    });
  return plan;
}

/** Removes the folder of a run. Others see all of it, or nothing. */
export async function removeRunFolder(parts: string, run: string): Promise<void> {
  const folder = runFolder(parts, run);
  const removed = `${folder}.removed-${randomUUID()}`;
  try {
    await rename(folder, removed);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
    throw error;
  }
  await rm(removed, { recursive: true, force: true, maxRetries: 10 });
}

/**
 * Checks that a plan can be computed by workers. They load no code, so it must not have a loss of a --loss-file.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function checkNoCode({ functions }: Pick<PlannedConfiguration, 'functions'>): void {
  for (const { choice, name, program } of functions)
    if (program !== undefined && choice !== '--loss-expr')
      throw new LossError('ERR_INVALID_OPTION', {
        at: `${choice} ${name}`,
        expected: 'a loss of this package or a --loss-expr, because workers load no code',
        received: 'a loss of a --loss-file',
      });
}
