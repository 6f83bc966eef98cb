//! The list of the suite's functions. Each test binary makes its tests from it.

/// Hands the list to a macro, behind what that macro is given besides.
macro_rules! conformance {
    ($each:ident! $($besides:tt)*) => {
        $each! { $($besides)*
            submitting: an_id_is_added_once,
                a_batch_keeps_its_order,
                a_task_reads_back;
            working: high_goes_before_normal_before_low_and_first_before_last,
                no_priority_starves,
                repositories_take_turns,
                limits_hold_and_nobody_leaks_a_permit,
                room_under_a_limit_wakes_who_waits,
                a_limit_of_an_agent_or_a_provider_holds,
                queues_are_served_in_the_order_asked_for,
                no_two_workers_hold_one_job,
                a_heartbeat_keeps_a_long_job,
                an_expired_lease_is_delivered_again,
                a_zombie_changes_nothing,
                a_report_may_be_repeated,
                a_release_is_not_charged,
                a_delayed_job_waits_for_its_time,
                a_job_that_nobody_survives_is_poison,
                a_cancelled_task_takes_its_worker_off,
                a_waiting_claim_is_woken_by_another_handle;
            landing: landings_on_one_branch_are_limited,
                who_has_a_landing_may_take_more,
                landings_do_not_limit_other_jobs;
            pausing: a_paused_queue_hands_nothing_out,
                a_pause_ends_by_itself,
                a_pause_of_a_provider_is_kept_until_it_is_ended,
                a_provider_is_held_for_as_long_as_the_longest_says,
                after_a_pause_one_call_goes_first,
                what_there_is_a_minute_is_shared;
            deciding: a_commit_is_all_or_nothing,
                a_stale_fence_is_refused,
                a_commit_raises_each_fence_once,
                a_final_task_has_no_jobs,
                a_discarded_outcome_is_gone_and_counted,
                outcomes_of_a_dead_coordinator_are_taken_over,
                a_waiting_take_is_woken_by_another_handle,
                ten_coordinators_decide_each_task_once;
            damage: an_unreadable_record_is_set_aside_at_claim,
                an_unreadable_outcome_is_set_aside_at_take,
                an_outcome_of_an_unreadable_record_is_set_aside,
                an_unreadable_record_is_named,
                a_restart_loses_nothing;
            watching: pages_show_each_task_once,
                a_filter_finds_what_is_meant,
                events_follow_a_cursor,
                the_event_log_keeps_the_newest,
                a_process_is_seen_until_it_leaves,
                statistics_are_true,
                a_sound_store_passes_its_check;
        }
    };
}
